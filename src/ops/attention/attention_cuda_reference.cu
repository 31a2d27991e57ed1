// attention, the CUDA definition: one block a token and head; keys in tiles of 128, one thread a score, then one thread
// an output dim; fp64. The largest score so far rescales the sums, so that one pass over the keys is enough.
#include <limits>

#include "ops/attention/attention_rows.h"
#include "ops/reference_cuda.cuh"

namespace assay::ops {
namespace {

using namespace reference_cuda;

constexpr int kTile = 128;
constexpr int kMaxDims = 4;  // output dims a thread, head_dim <= kMaxDims * kTile

struct Keys {
  const KvCacheView& cache;
  const int32_t* pages;
  int64_t head;
  __device__ int64_t offset(int position) const {
    return pages[position / cache.page_tokens] * cache.page_stride +
           (head * cache.page_tokens + position % cache.page_tokens) * cache.head_dim;
  }
};

__device__ double score(const AttentionDesc& desc, const AttentionOp::Args& args, const Keys& keys, int64_t t, int head,
                        int position) {
  const int64_t key = keys.offset(position);
  double sum = 0;
  for (int d = 0; d < desc.head_dim; ++d) {
    sum += load(args.q, t, int64_t{head} * desc.head_dim + d) * load(args.cache.dtype, args.cache.k, key + d) *
           args.cache.k_scale;
  }
  return sum * desc.scale;
}

__global__ void attention(AttentionDesc desc, AttentionOp::Args args) {
  __shared__ double weights[kTile];
  const int64_t t = blockIdx.x;
  const int head = blockIdx.y, lane = threadIdx.x;
  if (t >= live_total(args.batch.tokens)) return;
  const int position = args.batch.positions[t];
  const int64_t first_page = int64_t{args.batch.sequence_of[t]} * args.batch.page_table_stride;
  const Keys keys{args.cache, args.batch.page_table + first_page, head / (desc.heads / desc.kv_heads)};
  double largest = -std::numeric_limits<double>::infinity(), total = 0, out[kMaxDims] = {};
  for (int base = 0; base <= position; base += kTile) {
    const int count = min(kTile, position + 1 - base);
    if (lane < count) weights[lane] = score(desc, args, keys, t, head, base + lane);
    __syncthreads();
    double tile_largest = largest;
    for (int j = 0; j < count; ++j) tile_largest = max(tile_largest, weights[j]);
    const double rescale = exp(largest - tile_largest);
    largest = tile_largest;
    __syncthreads();
    if (lane < count) weights[lane] = exp(weights[lane] - largest);
    __syncthreads();
    total *= rescale;
    for (int i = 0; i < kMaxDims; ++i) out[i] *= rescale;
    for (int j = 0; j < count; ++j) {
      total += weights[j];
      const int64_t row = keys.offset(base + j);
      for (int i = 0; i < kMaxDims; ++i) {
        const int d = lane + i * kTile;
        if (d < desc.head_dim)
          out[i] += weights[j] * load(args.cache.dtype, args.cache.v, row + d) * args.cache.v_scale;
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kMaxDims; ++i) {
    const int d = lane + i * kTile;
    if (d >= desc.head_dim) continue;
    const double gate = desc.output_gate ? sigmoid(load(args.gate, t, head * args.gate_stride + d)) : 1.0;
    store(args.out, t, int64_t{head} * desc.head_dim + d, out[i] / total * gate);
  }
  if (args.lse.data != nullptr && lane == 0) store(args.lse, t, head, largest + log(total));
}

void enqueue(const AttentionDesc& desc, const AttentionOp::Args& args, const Launch& launch) {
  cuda::launch("attention cuda_reference", attention, dim3(args.batch.tokens.total, desc.heads), kTile, 0,
               launch.stream, desc, args);
}

Refusal can_run(const AttentionDesc& desc, const DeviceCaps& caps) {
  if (desc.head_dim > kMaxDims * kTile) return "head_dim above 512";
  return refuse_attention(desc, caps);
}

}  // namespace

const Impl<AttentionOp> kAttentionCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<AttentionOp>,
    .layout = cuda_row::no_layout<AttentionOp>,
    .can_run = can_run,
    .workspace_bytes = cuda_row::no_workspace<AttentionOp>,
    .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&, MakeContext&)
        -> Result<PlanPtr<AttentionOp>> { return cuda_row::make_plan<AttentionOp, AttentionDesc, enqueue>(desc); },
};

}  // namespace assay::ops
