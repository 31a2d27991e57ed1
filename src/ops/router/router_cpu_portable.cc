// router on any CPU: first the logits, split over the rows of the gate (portable_dot.h), then the choice, split over
// tokens. For one token of a small model both stay on the caller.
#include <algorithm>

#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/portable_dot.h"
#include "ops/router/router_cpu_choice.h"
#include "ops/router/router_rows.h"

namespace assay::ops {
namespace {

using portable::kTokenTile;

class RouterCpuPortable : public Plan<RouterOp::Args> {
 public:
  RouterCpuPortable(const RouterDesc& desc, std::vector<numeric::EncodedMatrix> matrices)
      : desc_(desc), form_(form(desc)), matrices_(std::move(matrices)) {}

  static size_t workspace_bytes(const RouterDesc& desc, int64_t tokens) {
    return form(desc).bytes(tokens) + static_cast<size_t>(tokens * (desc.experts + 1)) * sizeof(float);
  }

  void enqueue(const RouterOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden, "router {}: {} columns", describe(desc_), args.x.cols);
    auto* x = static_cast<std::byte*>(launch.workspace.data);
    auto* logits = reinterpret_cast<float*>(x + form_.bytes(tokens));
    form_.prepare(args.x, tokens, x);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    pool.parallel_for(desc_.experts + (desc_.shared_gate ? 1 : 0), portable::row_grain(tokens * desc_.hidden),
                      [&](int64_t begin, int64_t end) {
                        cpu::with_activation(desc_.activation,
                                             [&]<class T>() { dots<T>(x, tokens, begin, end, logits); });
                      });
    pool.parallel_for(tokens, route_grain(desc_), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) route(desc_, args, t, logits + t * (desc_.experts + 1));
    });
  }

 private:
  static portable::Tokens form(const RouterDesc& desc) { return {desc.format, desc.activation, desc.hidden}; }

  // logits[t][row] for rows [begin, end) of the gate and, behind them, the shared gate; rounded.
  template <class T>
  void dots(const std::byte* x, int64_t tokens, int64_t begin, int64_t end, float* logits) const {
    const int64_t stride = desc_.experts + 1;
    for (int64_t first = 0; first < tokens; first += kTokenTile) {
      const int64_t count = std::min(kTokenTile, tokens - first);
      const std::byte* tile_tokens[kTokenTile];
      for (int64_t t = 0; t < count; ++t) tile_tokens[t] = x + (first + t) * form_.bytes();
      float* out = logits + first * stride;
      for (int64_t row = begin; row < end;) {
        const bool shared = row >= desc_.experts;
        const int64_t rows = shared ? 1 : std::min<int64_t>(end, desc_.experts) - row;
        portable::dot_rows(matrices_[shared ? 1 : 0], form_, shared ? 0 : row, rows,
                           {tile_tokens, static_cast<size_t>(count)}, out + row, stride);
        row += rows;
      }
      for (int64_t t = 0; t < count; ++t, out += stride) {
        cpu::map_lanes(
            end - begin, out + begin, [](cpu::F4 logit) { return cpu::round_through<T>(logit); }, out + begin);
      }
    }
  }

  RouterDesc desc_;
  portable::Tokens form_;
  std::vector<numeric::EncodedMatrix> matrices_;
};

}  // namespace

const Impl<RouterOp> kRouterCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order =
        [](const RouterDesc& desc) {
          return order_id("router " + std::string(dot_order(desc.format, desc.activation)));
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
