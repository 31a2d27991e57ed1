// The definition of attention: fp64, the scores computed twice (largest first, then the weighted sum). Workspace: one
// fp64 output a token and head.
#include <algorithm>
#include <limits>

#include "backend/cpu/thread_pool.h"
#include "ops/attention/attention_rows.h"
#include "ops/host_launch.h"
#include "ops/reference.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

class Reference : public Plan<AttentionOp::Args> {
 public:
  explicit Reference(const AttentionDesc& desc) : desc_(desc) {}

  void enqueue(const AttentionOp::Args& args, const Launch& launch) const override {
    const int64_t rows = int64_t{token_total(args.batch.tokens)} * desc_.heads;
    Workspace workspace(launch.workspace);
    const View sums = workspace.take(DType::kF64, rows, desc_.head_dim);
    cpu::pool_of(launch.stream).parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        run_head(args, row / desc_.heads, static_cast<int32_t>(row % desc_.heads), sums.row<double>(row));
      }
    });
  }

 private:
  int64_t cache_offset(const AttentionOp::Args& args, int64_t token, int32_t head, int32_t position) const {
    const BatchView& batch = args.batch;
    const int64_t first = int64_t{batch.sequence_of[token]} * batch.page_table_stride;
    const int32_t page_tokens = args.cache.page_tokens;
    return args.cache.offset(batch.page_table[first + position / page_tokens], head / (desc_.heads / desc_.kv_heads),
                             position % page_tokens);
  }

  double score(const AttentionOp::Args& args, int64_t token, int32_t head, int32_t position) const {
    const int64_t key = cache_offset(args, token, head, position);
    double sum = 0;
    for (int32_t d = 0; d < desc_.head_dim; ++d) {
      sum += reference::load(args.q, token, int64_t{head} * desc_.head_dim + d) *
             reference::load(args.cache.dtype, args.cache.k, key + d) * args.cache.k_scale;
    }
    return desc_.scale * sum;
  }

  void run_head(const AttentionOp::Args& args, int64_t token, int32_t head, double* out) const {
    const int32_t position = args.batch.positions[token];
    double largest = -std::numeric_limits<double>::infinity();
    for (int32_t j = 0; j <= position; ++j) largest = std::max(largest, score(args, token, head, j));
    std::fill(out, out + desc_.head_dim, 0.0);
    double total = 0;
    for (int32_t j = 0; j <= position; ++j) {
      const double weight = std::exp(score(args, token, head, j) - largest);
      const int64_t value = cache_offset(args, token, head, j);
      total += weight;
      for (int32_t d = 0; d < desc_.head_dim; ++d) {
        out[d] += weight * reference::load(args.cache.dtype, args.cache.v, value + d) * args.cache.v_scale;
      }
    }
    for (int32_t d = 0; d < desc_.head_dim; ++d) {
      const double gate =
          desc_.output_gate ? reference::sigmoid(reference::load(args.gate, token, head * args.gate_stride + d)) : 1.0;
      reference::store(args.out, token, int64_t{head} * desc_.head_dim + d, out[d] / total * gate);
    }
    if (args.lse) reference::store(args.lse, token, head, largest + std::log(total));
  }

  AttentionDesc desc_;
};

size_t workspace_bytes(const AttentionDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kF64, int64_t{bucket.tokens} * desc.heads, desc.head_dim);
  return counted.used();
}

}  // namespace

constinit const Impl<AttentionOp> kAttentionReference = {
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const AttentionDesc&) { return OrderId::kNone; },
    .layout = [](const AttentionDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_attention,
    .workspace_bytes = workspace_bytes,
    .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<AttentionOp::Args>>> {
      return std::unique_ptr<Plan<AttentionOp::Args>>(new Reference(desc));
    }};

}  // namespace assay::ops
