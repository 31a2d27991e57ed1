// router on any CPU: first the logits, split over the rows of the gate (portable_dot.h), then the choice, split over
// tokens. For one token of a small model both stay on the caller.
#include <algorithm>

#include "backend/cpu/thread_pool.h"
#include "ops/portable_dot.h"
#include "ops/router/router_cpu_choice.h"
#include "ops/router/router_rows.h"

namespace assay::ops {
namespace {

using portable::kRowTile;
using portable::kTokenTile;

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
    pool.parallel_for(tokens, route_grain(desc_), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) route(desc_, args, t, logits + t * (desc_.experts + 1));
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
          return dot_products_exact(desc.format, desc.activation) ? order_id("router dot16 exact")
                                                                  : order_id("router dot16 multiply, add");
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
