// experts, the definition: fp64 sums, weights decoded from the file's bytes, rounded only where the formula says so.
// A weight row is decoded once for all tokens that use it.
#include "numeric/decode.h"
#include "ops/experts/experts_rows.h"
#include "ops/reference.h"

namespace assay::ops {
namespace {

class ExpertsReference : public Plan<ExpertsOp::Args> {
 public:
  ExpertsReference(const ExpertsDesc& desc, const WeightSource& source) : desc_(desc), matrices_(source.matrices) {
    for (numeric::EncodedMatrix& matrix : matrices_) {
      scales_.push_back(matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0);
      matrix.global_scale = 1.0f;
    }
  }

  // Two weight rows, one sum a token, and h of every token and choice.
  static size_t workspace_bytes(const ExpertsDesc& desc, int64_t tokens) {
    const int64_t doubles = 2 * std::max(desc.hidden, desc.intermediate) + tokens;
    return static_cast<size_t>(doubles) * sizeof(double) +
           static_cast<size_t>(tokens * desc.top_k * desc.intermediate) * sizeof(float);
  }

  void enqueue(const ExpertsOp::Args& args, const Launch& launch) const override {
    Scratch scratch;
    const int64_t row = std::max(desc_.hidden, desc_.intermediate);
    scratch.row0 = static_cast<double*>(launch.workspace.data);
    scratch.row1 = scratch.row0 + row;
    scratch.sums = scratch.row1 + row;
    scratch.h = reinterpret_cast<float*>(scratch.sums + args.tokens.total);
    hidden(args, scratch);
    if (launch.taps != nullptr) {
      launch.taps->record(
          "experts.hidden", launch.layer,
          ConstView(scratch.h, DType::kF32, int64_t{args.tokens.total} * desc_.top_k, desc_.intermediate));
    }
    for (int64_t n = 0; n < desc_.hidden; ++n) output(args, scratch, n);
  }

 private:
  struct Scratch {
    double* row0;
    double* row1;
    double* sums;
    float* h;
  };

  // Calls use(token, choice) for every token that chose the expert.
  template <class Use>
  void for_each_use(const ExpertsOp::Args& args, int32_t expert, const Use& use) const {
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      for (int32_t i = 0; i < desc_.top_k; ++i) {
        if (args.ids.row<int32_t>(t)[i] == expert) use(t, i);
      }
    }
  }

  bool used(const ExpertsOp::Args& args, int32_t expert) const {
    bool any = false;
    for_each_use(args, expert, [&](int32_t, int32_t) { any = true; });
    return any;
  }

  void hidden(const ExpertsOp::Args& args, const Scratch& scratch) const {
    for (int32_t e = 0; e < desc_.experts; ++e) {
      if (!used(args, e)) continue;
      const auto gate = static_cast<size_t>(3 * e), up = gate + 1;
      for (int64_t row = 0; row < desc_.intermediate; ++row) {
        numeric::decode_row(matrices_[gate], row, scratch.row0);
        numeric::decode_row(matrices_[up], row, scratch.row1);
        for_each_use(args, e, [&](int32_t t, int32_t i) {
          double gate_sum = 0.0, up_sum = 0.0;
          for (int64_t k = 0; k < desc_.hidden; ++k) {
            const double x = reference::load(args.x, t, k);
            gate_sum += x * scratch.row0[k];
            up_sum += x * scratch.row1[k];
          }
          const double value = reference::silu(gate_sum * scales_[gate]) * (up_sum * scales_[up]);
          scratch.h[(int64_t{t} * desc_.top_k + i) * desc_.intermediate + row] =
              static_cast<float>(reference::round_to(desc_.activation, value));
        });
      }
    }
  }

  void output(const ExpertsOp::Args& args, const Scratch& scratch, int64_t n) const {
    std::fill_n(scratch.sums, args.tokens.total, 0.0);
    for (int32_t e = 0; e < desc_.experts; ++e) {
      if (!used(args, e)) continue;
      const auto down = static_cast<size_t>(3 * e + 2);
      numeric::decode_row(matrices_[down], n, scratch.row0);
      for_each_use(args, e, [&](int32_t t, int32_t i) {
        const float* h = scratch.h + (int64_t{t} * desc_.top_k + i) * desc_.intermediate;
        double sum = 0.0;
        for (int64_t k = 0; k < desc_.intermediate; ++k) sum += h[k] * scratch.row0[k];
        scratch.sums[t] += reference::load(args.weights, t, i) * (sum * scales_[down]);
      });
    }
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      double sum = scratch.sums[t];
      if (args.shared) sum += reference::load(args.shared_scale, t, 0) * reference::load(args.shared, t, n);
      double value = reference::round_to(desc_.activation, sum);
      if (args.residual) value += reference::load(args.residual, t, n);
      reference::store(args.y, t, n, value);
    }
  }

  ExpertsDesc desc_;
  std::vector<numeric::EncodedMatrix> matrices_;  // with global scale 1
  std::vector<double> scales_;
};

}  // namespace

const Impl<ExpertsOp> kExpertsReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const ExpertsDesc&) { return order_id("experts fp64"); },
    .layout = [](const ExpertsDesc&) { return &kFileLayout; },
    .can_run = [](const ExpertsDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes = [](const ExpertsDesc& desc, const Bucket& bucket,
                          MakeContext&) { return ExpertsReference::workspace_bytes(desc, bucket.tokens); },
    .make = [](const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<ExpertsOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_experts(context.weights, weights.experts, desc));
      return PlanPtr<ExpertsOp>(std::make_unique<ExpertsReference>(desc, *source));
    },
};

}  // namespace assay::ops
