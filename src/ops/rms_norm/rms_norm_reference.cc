// rms_norm, the definition: in fp64, rounded once.
#include "numeric/decode.h"
#include "ops/checked_source.h"
#include "ops/reference.h"
#include "ops/refusals.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {
namespace {

class RmsNormReference : public Plan<RmsNormOp::Args> {
 public:
  RmsNormReference(const RmsNormDesc& desc, const WeightSource& source)
      : desc_(desc), weight_(static_cast<size_t>(desc.width)) {
    numeric::decode_row(source.matrices[0], 0, weight_.data());
  }

  void enqueue(const RmsNormOp::Args& args, const Launch& launch) const override {
    bool finite = true;
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      for (int64_t group = 0; group < desc_.groups; ++group) finite &= chunk(args, t, group * desc_.width);
    }
    const bool flag = !finite && desc_.kind == NormKind::kZeroCentred && launch.flags != nullptr;
    if (flag && launch.flags->words != nullptr) launch.flags->words[launch.layer] |= Sentinel::kNonFiniteResidual;
  }

 private:
  // Returns whether x is finite.
  bool chunk(const RmsNormOp::Args& args, int32_t t, int64_t first) const {
    const int64_t row = args.gather == nullptr ? t : args.gather[t];
    bool finite = true;
    double squares = 0.0;
    for (int64_t i = 0; i < desc_.width; ++i) {
      const double x = reference::load(args.x, row, first + i);
      finite &= std::isfinite(x);
      squares += x * x;
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(desc_.width) + desc_.eps);
    for (int64_t i = 0; i < desc_.width; ++i) {
      const double n = reference::load(args.x, row, first + i) * scale, w = weight_[static_cast<size_t>(i)];
      double y = n * (1.0 + w);
      if (desc_.kind == NormKind::kGated) {
        const double z = reference::load(args.z, t, first + i);
        y = n * w * (desc_.sigmoid_gate ? reference::sigmoid(z) : reference::silu(z));
      }
      reference::store(args.y, t, first + i, y);
    }
    return finite;
  }

  RmsNormDesc desc_;
  std::vector<double> weight_;
};

}  // namespace

const Impl<RmsNormOp> kRmsNormReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const RmsNormDesc&) { return order_id("rms_norm fp64"); },
    .layout = nullptr,
    .can_run = [](const RmsNormDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const RmsNormDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const RmsNormDesc& desc, const Bucket&, const RmsNormOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<RmsNormOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_vector(context.weights, weights.weight, desc.width));
      return PlanPtr<RmsNormOp>(std::make_unique<RmsNormReference>(desc, *source));
    },
};

}  // namespace assay::ops
