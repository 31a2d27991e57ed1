// linear on any CPU: outputs are split over the threads; each thread walks token tiles, and within one its weight rows
// (portable_dot.h). Reads W once per 32 tokens. Bound by decoding for one token and by the SSE multiply-add rate for
// many.
#include <algorithm>

#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/checked_source.h"
#include "ops/linear/linear_rows.h"
#include "ops/portable_dot.h"

namespace assay::ops {
namespace {

using portable::kTokenTile;

constexpr int64_t kRowBlock = 64;  // outputs of a tile of tokens on the stack, 8 KB

class LinearCpuPortable : public Plan<LinearOp::Args> {
 public:
  LinearCpuPortable(const LinearDesc& desc, const WeightSource& source)
      : desc_(desc), form_(desc.format, desc.activation, desc.k), source_(source) {}

  void enqueue(const LinearOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.k && args.y.cols == desc_.n, "linear {}: x [, {}], y [, {}]", describe(desc_),
          args.x.cols, args.y.cols);
    auto* x = static_cast<std::byte*>(launch.workspace.data);
    form_.prepare(args.x, tokens, x);
    cpu::pool_of(launch.stream)
        .parallel_for(desc_.n, portable::row_grain(desc_.k * tokens), [&](int64_t begin, int64_t end) {
          for (int64_t t = 0; t < tokens; t += kTokenTile) {
            const int64_t count = std::min(kTokenTile, tokens - t);
            cpu::with_activation(desc_.output, [&]<class Out>() { tile<Out>(args, x, t, count, begin, end); });
          }
        });
  }

 private:
  // Outputs [begin, end) of tokens [first, first + count).
  template <class Out>
  void tile(const LinearOp::Args& args, const std::byte* x, int64_t first, int64_t count, int64_t begin,
            int64_t end) const {
    const std::byte* tokens[kTokenTile];
    for (int64_t t = 0; t < count; ++t) tokens[t] = x + (first + t) * form_.bytes();
    size_t shard = 0;
    int64_t shard_begin = 0;
    for (int64_t n = begin; n < end;) {
      while (n >= shard_begin + source_.matrices[shard].rows) shard_begin += source_.matrices[shard++].rows;
      const numeric::EncodedMatrix& matrix = source_.matrices[shard];
      const int64_t rows = std::min({kRowBlock, end - n, shard_begin + matrix.rows - n});
      float dots[kTokenTile * kRowBlock];
      portable::dot_rows(matrix, form_, n - shard_begin, rows, {tokens, static_cast<size_t>(count)}, dots, kRowBlock);
      for (int64_t t = 0; t < count; ++t) {
        const float* dot = dots + t * kRowBlock;
        Out* y = args.y.row<Out>(first + t) + n;
        if (args.residual) {
          const auto add = [](cpu::F4 value, cpu::F4 residual) { return residual + cpu::round_through<Out>(value); };
          cpu::map_lanes(rows, y, add, dot, args.residual.row<Out>(first + t) + n);
        } else {
          cpu::map_lanes(
              rows, y, [](cpu::F4 value) { return value; }, dot);
        }
      }
      n += rows;
    }
  }

  LinearDesc desc_;
  portable::Tokens form_;
  const WeightSource& source_;
};

}  // namespace

const Impl<LinearOp> kLinearCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const LinearDesc& desc) { return order_id(dot_order(desc.format, desc.activation)); },
    .layout = [](const LinearDesc&) { return &kFileLayout; },
    .can_run = [](const LinearDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes =
        [](const LinearDesc& desc, const Bucket& bucket, MakeContext&) {
          return portable::Tokens(desc.format, desc.activation, desc.k).bytes(bucket.tokens);
        },
    .make = [](const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<LinearOp>> {
      ASSAY_ASSIGN(const WeightSource* source,
                   checked_source(context.weights, weights.matrix, desc.n, desc.k, desc.format));
      return PlanPtr<LinearOp>(std::make_unique<LinearCpuPortable>(desc, *source));
    },
};

}  // namespace assay::ops
