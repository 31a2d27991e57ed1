// linear, the definition: for one output after the other the fp64 sum over k of x * W, W decoded from the file's bytes.
// NVFP4: code * block scale is exact in a double; the global scale multiplies the sum. A row is decoded once for a
// block of tokens.
#include <algorithm>

#include "numeric/decode.h"
#include "ops/checked_source.h"
#include "ops/linear/linear_rows.h"
#include "ops/reference.h"

namespace assay::ops {
namespace {

class LinearReference : public Plan<LinearOp::Args> {
 public:
  LinearReference(const LinearDesc& desc, const WeightSource& source) : desc_(desc), matrices_(source.matrices) {
    for (numeric::EncodedMatrix& matrix : matrices_) {
      scales_.push_back(matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0);
      matrix.global_scale = 1.0f;
    }
  }

  // A weight row and the inputs of a block.
  static size_t workspace_bytes(const LinearDesc& desc) {
    return static_cast<size_t>((1 + kBlock) * desc.k) * sizeof(double);
  }

  void enqueue(const LinearOp::Args& args, const Launch& launch) const override {
    auto* weights = static_cast<double*>(launch.workspace.data);
    double* inputs = weights + desc_.k;
    for (int32_t first = 0; first < args.tokens.total; first += kBlock) {
      const int32_t count = std::min(kBlock, args.tokens.total - first);
      for (int32_t t = 0; t < count; ++t) {
        for (int64_t k = 0; k < desc_.k; ++k) inputs[t * desc_.k + k] = reference::load(args.x, first + t, k);
      }
      int64_t n = 0;
      for (size_t m = 0; m < matrices_.size(); ++m) {
        for (int64_t row = 0; row < matrices_[m].rows; ++row, ++n) {
          numeric::decode_row(matrices_[m], row, weights);
          for (int32_t t = 0; t < count; ++t) output(args, first + t, n, inputs + t * desc_.k, weights, scales_[m]);
        }
      }
    }
  }

 private:
  static constexpr int32_t kBlock = 64;

  void output(const LinearOp::Args& args, int32_t token, int64_t n, const double* x, const double* weights,
              double scale) const {
    double sum = 0;
    for (int64_t k = 0; k < desc_.k; ++k) sum += x[k] * weights[k];
    double value = reference::round_to(desc_.output, sum * scale);
    if (args.residual) value += reference::load(args.residual, token, n);
    reference::store(args.y, token, n, value);
  }

  LinearDesc desc_;
  std::vector<numeric::EncodedMatrix> matrices_;  // with global scale 1
  std::vector<double> scales_;
};

}  // namespace

const Impl<LinearOp> kLinearReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const LinearDesc&) { return order_id("linear fp64"); },
    .layout = [](const LinearDesc&) { return &kFileLayout; },
    .can_run = [](const LinearDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes = [](const LinearDesc& desc, const Bucket&,
                          MakeContext&) { return LinearReference::workspace_bytes(desc); },
    .make = [](const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<LinearOp>> {
      ASSAY_ASSIGN(const WeightSource* source,
                   checked_source(context.weights, weights.matrix, desc.n, desc.k, desc.format));
      return PlanPtr<LinearOp>(std::make_unique<LinearReference>(desc, *source));
    },
};

}  // namespace assay::ops
