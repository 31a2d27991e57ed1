// router on any CPU: first the logits, split over the rows of the gate (portable_dot.h), then the choice, split over
// tokens. For one token of a small model both stay on the caller.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/thread_pool.h"
#include "ops/portable_dot.h"
#include "ops/router/router_rows.h"

namespace assay::ops {
namespace {

using portable::kRowTile;
using portable::kTokenTile;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kComparisonsPerPiece = 10'000;

class RouterCpuPortable : public Plan<RouterOp::Args> {
 public:
  RouterCpuPortable(const RouterDesc& desc, std::vector<numeric::EncodedMatrix> matrices)
      : desc_(desc), matrices_(std::move(matrices)) {
    for (const numeric::EncodedMatrix& matrix : matrices_) {
      for (int64_t row = 0; row < matrix.rows; ++row) rows_.push_back({&matrix, row});
    }
  }

  static size_t workspace_bytes(const RouterDesc& desc, int64_t tokens) {
    return portable::widened_bytes(tokens, desc.hidden) +
           static_cast<size_t>(tokens * (desc.experts + 1)) * sizeof(float);
  }

  void enqueue(const RouterOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden, "router {}: {} columns", describe(desc_), args.x.cols);
    auto* x = static_cast<float*>(launch.workspace.data);
    float* logits = x + tokens * dot_padded(desc_.hidden);
    portable::widen(args.x, tokens, x);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    pool.parallel_for(static_cast<int64_t>(rows_.size()), portable::row_grain(tokens * desc_.hidden),
                      [&](int64_t begin, int64_t end) { dots(x, tokens, begin, end, logits); });
    const int64_t grain = std::max<int64_t>(1, kComparisonsPerPiece / (desc_.experts * desc_.top_k));
    pool.parallel_for(tokens, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) route(args, t, logits + t * (desc_.experts + 1));
    });
  }

 private:
  void dots(const float* x, int64_t tokens, int64_t begin, int64_t end, float* logits) const {
    const bool bf16 = desc_.activation == DType::kBf16;
    for (int64_t first = 0; first < tokens; first += kTokenTile) {
      const int64_t count = std::min(kTokenTile, tokens - first);
      const float* tile_tokens[kTokenTile];
      for (int64_t t = 0; t < count; ++t) tile_tokens[t] = x + (first + t) * dot_padded(desc_.hidden);
      for (int64_t row = begin; row < end; row += kRowTile) {
        const auto rows =
            std::span(rows_).subspan(static_cast<size_t>(row), static_cast<size_t>(std::min(kRowTile, end - row)));
        float sums[kRowTile * kTokenTile];
        portable::dot_tile(rows, {tile_tokens, static_cast<size_t>(count)}, desc_.hidden, sums);
        for (int64_t r = 0; r < static_cast<int64_t>(rows.size()); ++r) {
          const float scale = portable::global_scale(*rows[static_cast<size_t>(r)].matrix);
          for (int64_t t = 0; t < count; ++t) {
            const float value = sums[r * kTokenTile + t] * scale;
            logits[(first + t) * (desc_.experts + 1) + row + r] = bf16 ? cpu::round_through<cpu::Bf16>(value) : value;
          }
        }
      }
    }
  }

  void route(const RouterOp::Args& args, int64_t t, const float* logits) const {
    if (args.logits) std::copy_n(logits, desc_.experts, args.logits.row<float>(t));
    if (desc_.shared_gate) *args.shared_scale.row<float>(t) = 1.0f / (1.0f + std::exp(-logits[desc_.experts]));
    auto* ids = args.ids.row<int32_t>(t);
    if (args.forced_ids) {
      std::copy_n(args.forced_ids.row<int32_t>(t), desc_.top_k, ids);
      for (int32_t i = 0; i < desc_.top_k; ++i) CHECK(ids[i] >= 0 && ids[i] < desc_.experts, "expert {}", ids[i]);
    } else {
      choose(logits, ids);
    }
    float largest = -kInfinity, sum = 0.0f;
    for (int32_t i = 0; i < desc_.top_k; ++i) largest = std::max(largest, rank(logits[ids[i]]));
    float* weights = args.weights.row<float>(t);
    for (int32_t i = 0; i < desc_.top_k; ++i) sum += weights[i] = std::exp(logits[ids[i]] - largest);
    const bool finite_softmax = std::all_of(logits, logits + desc_.experts, [](float l) { return l < kInfinity; });
    for (int32_t i = 0; i < desc_.top_k; ++i) {
      weights[i] = finite_softmax ? weights[i] / sum : std::numeric_limits<float>::quiet_NaN();
    }
  }

  static float rank(float logit) { return std::isnan(logit) ? -kInfinity : logit; }

  // Insertion into a sorted list of the top_k: a logit goes behind those it equals, which have lower indices.
  void choose(const float* logits, int32_t* ids) const {
    int32_t count = 0;
    for (int32_t e = 0; e < desc_.experts; ++e) {
      const float value = rank(logits[e]);
      if (count == desc_.top_k && value <= rank(logits[ids[count - 1]])) continue;
      int32_t place = count < desc_.top_k ? count++ : count - 1;
      for (; place > 0 && rank(logits[ids[place - 1]]) < value; --place) ids[place] = ids[place - 1];
      ids[place] = e;
    }
  }

  RouterDesc desc_;
  std::vector<numeric::EncodedMatrix> matrices_;
  std::vector<portable::WeightRow> rows_;  // into matrices_
};

}  // namespace

const Impl<RouterOp> kRouterCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order =
        [](const RouterDesc& desc) {
          return dot_products_exact(desc.format, desc.activation) ? order_id("router dot16 exact expf")
                                                                  : order_id("router dot16 multiply, add expf");
        },
    .layout = [](const RouterDesc&) { return &kFileLayout; },
    .can_run = [](const RouterDesc& desc, const DeviceCaps&) { return refuse_router(desc); },
    .workspace_bytes = [](const RouterDesc& desc, const Bucket& bucket,
                          MakeContext&) { return RouterCpuPortable::workspace_bytes(desc, bucket.tokens); },
    .make = [](const RouterDesc& desc, const Bucket&, const RouterOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<RouterOp>> {
      ASSAY_ASSIGN(auto matrices, router_matrices(context.weights, desc, weights));
      return PlanPtr<RouterOp>(std::make_unique<RouterCpuPortable>(desc, std::move(matrices)));
    },
};

}  // namespace assay::ops
