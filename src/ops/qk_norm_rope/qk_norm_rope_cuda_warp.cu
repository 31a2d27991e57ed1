// qk_norm_rope: one warp a token and head (query heads, then key heads); a key head's warp also moves the value head.
// The normed head waits in shared memory for its rotation partner. Bytes: qkv once, q and the cache rows once.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/file_layout_cuda.h"
#include "ops/plan_cuda.h"
#include "ops/qk_norm_rope/qk_norm_rope_rows.h"
#include "ops/qk_norm_rope/rope_table.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kWarps = 4;
constexpr int kMaxDim = 512;

struct State {
  QkNormRopeDesc desc;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  RopeTable rope;
};

// The normed head, in shared memory, with its first rotary_dim values turned.
__device__ void norm_and_turn(const State& state, const Bf16Bits* from, const float* weight, int position,
                              float* head) {
  const QkNormRopeDesc& desc = state.desc;
  const int lane = threadIdx.x % 32, half = desc.rotary_dim / 2;
  float squares = 0.0f;
#pragma unroll 8
  for (int i = lane; i < desc.head_dim; i += 32) {
    const float x = cuda::to_float(from[i]);
    squares = fmaf(x, x, squares);
  }
  const float scale = 1.0f / sqrtf(cuda::warp_sum(squares) / static_cast<float>(desc.head_dim) + desc.eps);
#pragma unroll 8
  for (int i = lane; i < desc.head_dim; i += 32) head[i] = cuda::to_float(from[i]) * scale * (1.0f + weight[i]);
  __syncwarp();
  for (int i = lane; i < half; i += 32) {
    const float angle = static_cast<float>(position) * state.rope.inv_freq[i];
    const float sine = sinf(angle), cosine = cosf(angle), x = head[i], y = head[i + half];
    head[i] = x * cosine - y * sine;
    head[i + half] = y * cosine + x * sine;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kWarps * 32)
    qk_norm_rope(const __grid_constant__ State state, const QkNormRopeOp::Args args, uint32_t* flags) {
  cuda::begin_overlapped();
  __shared__ float shared[kWarps][kMaxDim];
  const QkNormRopeDesc& desc = state.desc;
  const BatchView& batch = args.batch;
  const int heads = desc.heads + desc.kv_heads, lane = threadIdx.x % 32;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, t = index / heads;
  const int unit = static_cast<int>(index % heads), kv_head = unit - desc.heads;
  if (t >= (batch.tokens.live == nullptr ? batch.tokens.total : batch.tokens.live[1])) return;
  const int64_t dim = desc.head_dim, q_width = dim * (desc.output_gate ? 2 : 1);
  const auto* row = static_cast<const Bf16Bits*>(args.qkv.data) + t * args.qkv.stride;
  float* head = shared[threadIdx.x / 32];
  const int position = batch.positions[t];
  if (kv_head < 0) {
    norm_and_turn(state, row + unit * q_width, state.q_norm, position, head);
    auto* to = static_cast<Bf16Bits*>(args.q_out.data) + t * args.q_out.stride + unit * dim;
    for (int i = lane; i < dim; i += 32) to[i] = cuda::to_bf16(head[i]);
    return;
  }
  const Bf16Bits* from = row + desc.heads * q_width + kv_head * dim;
  norm_and_turn(state, from, state.k_norm, position, head);
  const KvCacheView& cache = args.cache;
  const int64_t table = int64_t{batch.sequence_of[t]} * batch.page_table_stride;
  const int64_t page = batch.page_table[table + position / cache.page_tokens];
  const int64_t to =
      page * cache.page_stride + (int64_t{kv_head} * cache.page_tokens + position % cache.page_tokens) * dim;
  bool finite = true;
#pragma unroll 8
  for (int i = lane; i < dim; i += 32) {
    const Bf16Bits k = cuda::to_bf16(head[i]), v = from[desc.kv_heads * dim + i];
    static_cast<Bf16Bits*>(cache.k)[to + i] = k;
    static_cast<Bf16Bits*>(cache.v)[to + i] = v;
    finite = finite && isfinite(cuda::to_float(k)) && isfinite(cuda::to_float(v));
  }
  cuda::flag(flags, Sentinel::kNonFiniteKv, !finite);
}

void enqueue(const State& state, const QkNormRopeOp::Args& args, const Launch& launch) {
  const int64_t heads = int64_t{args.batch.tokens.total} * (state.desc.heads + state.desc.kv_heads);
  cuda::launch("qk_norm_rope cuda_warp", cuda::Start::kOverlap, qk_norm_rope, cuda::blocks_for(heads, kWarps),
               kWarps * 32, 0, launch.stream, state, args, cuda_row::flag_word(launch));
}

Refusal can_run(const QkNormRopeDesc& desc, const DeviceCaps& caps) {
  if (desc.activation != DType::kBf16 || desc.cache != DType::kBf16) return "activations and cache must be bf16";
  if (desc.head_dim > kMaxDim) return "head_dim above 512";
  if (Refusal refusal = RopeTable::refuse(desc)) return refusal;
  return refuse_qk_norm_rope(desc, caps);
}

Result<PlanPtr<QkNormRopeOp>> make(const QkNormRopeDesc& desc, const Bucket&, const QkNormRopeOp::Weights& weights,
                                   MakeContext& context) {
  State state{desc, nullptr, nullptr, RopeTable(desc)};
  ASSAY_ASSIGN(state.q_norm, cuda_f32_matrix(context.weights, weights.q_norm, 1, desc.head_dim));
  ASSAY_ASSIGN(state.k_norm, cuda_f32_matrix(context.weights, weights.k_norm, 1, desc.head_dim));
  return cuda_row::make_plan<QkNormRopeOp, State, enqueue>(state);
}

}  // namespace

const Impl<QkNormRopeOp> kQkNormRopeCudaWarp = {
    .name = "cuda_warp",
    .backend = Backend::kCuda,
    .order = [](const QkNormRopeDesc&) { return order_id("32 lanes, butterfly, cuda sinf"); },
    .layout = cuda_row::no_layout<QkNormRopeOp>,
    .can_run = can_run,
    .workspace_bytes = cuda_row::no_workspace<QkNormRopeOp>,
    .make = make,
};

}  // namespace assay::ops
