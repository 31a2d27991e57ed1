// router, the definition: fp64 sums, weights decoded from the file's bytes, logits rounded to the activation dtype,
// then fp64 again.
#include <algorithm>
#include <limits>

#include "numeric/decode.h"
#include "ops/reference.h"
#include "ops/router/router_rows.h"

namespace assay::ops {
namespace {

class RouterReference : public Plan<RouterOp::Args> {
 public:
  RouterReference(const RouterDesc& desc, std::vector<numeric::EncodedMatrix> matrices)
      : desc_(desc), matrices_(std::move(matrices)) {
    for (numeric::EncodedMatrix& matrix : matrices_) {
      scales_.push_back(matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0);
      matrix.global_scale = 1.0f;
    }
  }

  // One weight row and the logits of every token.
  static size_t workspace_bytes(const RouterDesc& desc, int64_t tokens) {
    return static_cast<size_t>(desc.hidden + tokens * (desc.experts + 1)) * sizeof(double);
  }

  void enqueue(const RouterOp::Args& args, const Launch& launch) const override {
    auto* weights = static_cast<double*>(launch.workspace.data);
    double* logits = weights + desc_.hidden;
    const int64_t stride = desc_.experts + 1;
    int64_t row = 0;
    for (size_t m = 0; m < matrices_.size(); ++m) {
      for (int64_t r = 0; r < matrices_[m].rows; ++r, ++row) {
        numeric::decode_row(matrices_[m], r, weights);
        for (int32_t t = 0; t < args.tokens.total; ++t) {
          double sum = 0.0;
          for (int64_t k = 0; k < desc_.hidden; ++k) sum += reference::load(args.x, t, k) * weights[k];
          logits[t * stride + row] = reference::round_to(desc_.activation, sum * scales_[m]);
        }
      }
    }
    for (int32_t t = 0; t < args.tokens.total; ++t) route(args, t, logits + t * stride);
  }

 private:
  static double rank(double logit) { return std::isnan(logit) ? -std::numeric_limits<double>::infinity() : logit; }

  void route(const RouterOp::Args& args, int32_t t, const double* logits) const {
    if (args.logits) {
      for (int32_t e = 0; e < desc_.experts; ++e) reference::store(args.logits, t, e, logits[e]);
    }
    if (desc_.shared_gate) reference::store(args.shared_scale, t, 0, reference::sigmoid(logits[desc_.experts]));
    auto* ids = args.ids.row<int32_t>(t);
    for (int32_t i = 0; i < desc_.top_k; ++i) {
      ids[i] = args.forced_ids ? args.forced_ids.row<int32_t>(t)[i] : best_but(ids, i, logits);
      CHECK(ids[i] >= 0 && ids[i] < desc_.experts, "expert {} of {}", ids[i], desc_.experts);
    }
    bool finite_softmax = true;
    for (int32_t e = 0; e < desc_.experts; ++e) finite_softmax &= logits[e] < std::numeric_limits<double>::infinity();
    double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
    for (int32_t i = 0; i < desc_.top_k; ++i) largest = std::max(largest, rank(logits[ids[i]]));
    for (int32_t i = 0; i < desc_.top_k; ++i) sum += std::exp(logits[ids[i]] - largest);
    for (int32_t i = 0; i < desc_.top_k; ++i) {
      const double weight = std::exp(logits[ids[i]] - largest) / sum;
      reference::store(args.weights, t, i, finite_softmax ? weight : std::numeric_limits<double>::quiet_NaN());
    }
  }

  // The expert with the largest logit, the lowest index among equals, that is not among the first `count` ids.
  int32_t best_but(const int32_t* ids, int32_t count, const double* logits) const {
    int32_t best = -1;
    for (int32_t e = 0; e < desc_.experts; ++e) {
      if (std::find(ids, ids + count, e) != ids + count) continue;
      if (best < 0 || rank(logits[e]) > rank(logits[best])) best = e;
    }
    return best;
  }

  RouterDesc desc_;
  std::vector<numeric::EncodedMatrix> matrices_;  // with global scale 1
  std::vector<double> scales_;
};

}  // namespace

const Impl<RouterOp> kRouterReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const RouterDesc&) { return order_id("router fp64"); },
    .layout = [](const RouterDesc&) { return &kFileLayout; },
    .can_run = [](const RouterDesc& desc, const DeviceCaps&) { return refuse_router(desc); },
    .workspace_bytes = [](const RouterDesc& desc, const Bucket& bucket,
                          MakeContext&) { return RouterReference::workspace_bytes(desc, bucket.tokens); },
    .make = [](const RouterDesc& desc, const Bucket&, const RouterOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<RouterOp>> {
      ASSAY_ASSIGN(auto matrices, router_matrices(context.weights, desc, weights));
      return PlanPtr<RouterOp>(std::make_unique<RouterReference>(desc, std::move(matrices)));
    },
};

}  // namespace assay::ops
