// router: the gate's logits by linear's few-token kernel into F32, then one block a token chooses, by counting, and
// takes the shared gate's dot product. Workspace: the logits. Bytes: the gate once for each 32 tokens. Bound: latency.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/file_layout_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/plan_cuda.h"
#include "ops/router/router_rows.h"
#include "ops/tile_layout_cuda.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 32;
constexpr int kThreads = 256;

struct State {
  RouterDesc desc;
  LinearTiles gate;
  const float* shared_gate = nullptr;
};

// Larger is better: the logit (NaN least), then the lower expert.
__device__ __forceinline__ uint64_t rank(float logit, int expert) {
  if (isnan(logit)) logit = -INFINITY;
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  const uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(expert));
}

// Each warp counts, in groups of 32 experts, how many of its group are better than each: the first top_k of a group are
// candidates, and their places among all candidates are counted the same way. chosen[i]: the i-th best expert.
__device__ void choose(const RouterDesc& desc, const RouterOp::Args& args, const float* logits, int64_t t,
                       int (&chosen)[kMaxTopK], bool& finite) {
  __shared__ __align__(16) uint64_t ranks[kMaxExperts];
  __shared__ __align__(16) uint64_t candidates[kMaxExperts];
  const int groups = (desc.experts + 31) / 32, count = groups * desc.top_k;
  for (int i = threadIdx.x; i < count + count % 2; i += kThreads) candidates[i] = 0;
  __syncthreads();
  const auto better = [](const uint64_t* of, int size, uint64_t mine) {
    int found = 0;
#pragma unroll 8
    for (int i = 0; i < size; i += 2) {
      const ulonglong2 pair = *reinterpret_cast<const ulonglong2*>(of + i);
      found += (pair.x > mine) + (pair.y > mine);
    }
    return found;
  };
  for (int e = threadIdx.x; e < groups * 32; e += kThreads) {
    const float logit = e < desc.experts ? cuda::round_bf16(logits[e]) : 0.0f;
    const uint64_t mine = e < desc.experts ? rank(logit, e) : 0;
    ranks[e] = mine;
    finite = finite && logit < INFINITY;
    if (e < desc.experts && args.logits.data != nullptr) {
      static_cast<float*>(args.logits.data)[t * args.logits.stride + e] = logit;
    }
    __syncwarp();
    const int place = better(ranks + e / 32 * 32, 32, mine);
    if (place < desc.top_k) candidates[e / 32 * desc.top_k + place] = mine;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const uint64_t mine = candidates[i];
    const int place = mine == 0 ? kMaxTopK : better(candidates, count, mine);
    if (place < desc.top_k) chosen[place] = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(mine));
  }
}

// By one warp: the softmax over the chosen.
__device__ void store_choice(const RouterDesc& desc, const RouterOp::Args& args, const float* logits, int64_t t,
                             int mine, bool finite) {
  const int lane = threadIdx.x;
  const bool holds = lane < desc.top_k;
  const float logit = holds ? cuda::round_bf16(logits[mine]) : -INFINITY;
  const float largest = cuda::warp_max(isnan(logit) ? -INFINITY : logit);
  const float weight = holds ? expf(logit - largest) : 0.0f;
  const float sum = cuda::warp_sum(weight);
  if (!holds) return;
  static_cast<int32_t*>(args.ids.data)[t * args.ids.stride + lane] = mine;
  static_cast<float*>(args.weights.data)[t * args.weights.stride + lane] = finite ? weight / sum : NAN;
}

// A thread's share of the shared gate's dot product: eight inputs at a time.
__device__ float shared_dot(const State& state, const RouterOp::Args& args, int64_t t, bool aligned) {
  const auto* x = static_cast<const cuda::Bf16Bits*>(args.x.data) + t * args.x.stride;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x * 8; i < state.desc.hidden; i += kThreads * 8) {
    const uint4 v = cuda::load8(x + i, aligned);
    const float4 a = *reinterpret_cast<const float4*>(state.shared_gate + i);
    const float4 b = *reinterpret_cast<const float4*>(state.shared_gate + i + 4);
    sum = fmaf(cuda::bf16_low(v.x), a.x, sum);
    sum = fmaf(cuda::bf16_high(v.x), a.y, sum);
    sum = fmaf(cuda::bf16_low(v.y), a.z, sum);
    sum = fmaf(cuda::bf16_high(v.y), a.w, sum);
    sum = fmaf(cuda::bf16_low(v.z), b.x, sum);
    sum = fmaf(cuda::bf16_high(v.z), b.y, sum);
    sum = fmaf(cuda::bf16_low(v.w), b.z, sum);
    sum = fmaf(cuda::bf16_high(v.w), b.w, sum);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    router_choose(State state, RouterOp::Args args, const float* logits, bool aligned) {
  cuda::begin_overlapped();
  __shared__ int chosen[kMaxTopK];
  __shared__ float sums[kThreads / 32];
  const int64_t t = blockIdx.x;
  if (t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  const RouterDesc& desc = state.desc;
  logits += t * desc.experts;
  const float dot = desc.shared_gate ? shared_dot(state, args, t, aligned) : 0.0f;
  bool finite = true;
  choose(desc, args, logits, t, chosen, finite);
  finite = __syncthreads_and(finite);
  const float sum = cuda::block_sum<kThreads / 32>(dot, sums);
  if (desc.shared_gate && threadIdx.x == kThreads - 1) {
    static_cast<float*>(args.shared_scale.data)[t * args.shared_scale.stride] = cuda::sigmoid(cuda::round_bf16(sum));
  }
  if (threadIdx.x >= 32) return;
  int mine = 0;  // lane i: the i-th choice
  if (static_cast<int>(threadIdx.x) < desc.top_k) {
    const auto* forced = static_cast<const int32_t*>(args.forced_ids.data);
    mine = forced == nullptr ? chosen[threadIdx.x] : forced[t * args.forced_ids.stride + threadIdx.x];
  }
  store_choice(desc, args, logits, t, mine, finite);
}

void enqueue(const State& state, const RouterOp::Args& args, const Launch& launch) {
  const View logits = Workspace(launch.workspace).take(DType::kF32, args.tokens.total, state.desc.experts);
  enqueue_linear_gemv(state.gate, {args.tokens, args.x, {}, logits}, TokenRange::kAll, launch);
  const bool aligned = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0;
  cuda::launch("router cuda_tile choose", cuda::Start::kOverlap, router_choose, args.tokens.total, kThreads, 0,
               launch.stream, state, args, static_cast<const float*>(logits.data), aligned);
}

LinearDesc gate_desc(const RouterDesc& desc) {
  return {desc.experts, desc.hidden, desc.format, weight_only_lane(desc.format), desc.activation, DType::kF32};
}

Refusal can_run(const RouterDesc& desc, const DeviceCaps& caps) {
  if (desc.experts > kMaxExperts || desc.top_k > kMaxTopK) return "more than 1024 experts or top_k above 32";
  if (desc.format != numeric::WeightFormat::kBf16) return "the gate must be bf16";
  if (Refusal refusal = refuse_linear_tiles(gate_desc(desc), caps)) return refusal;
  return refuse_router(desc);
}

size_t workspace_bytes(const RouterDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kF32, bucket.tokens, desc.experts);
  return counted.used();
}

Result<PlanPtr<RouterOp>> make(const RouterDesc& desc, const Bucket&, const RouterOp::Weights& weights,
                               MakeContext& context) {
  State state{desc, {}, nullptr};
  ASSAY_ASSIGN(state.gate, linear_tiles(gate_desc(desc), context.weights, weights.gate));
  if (desc.shared_gate) {
    ASSAY_ASSIGN(state.shared_gate, cuda_f32_matrix(context.weights, weights.shared_gate, 1, desc.hidden));
  }
  return cuda_row::make_plan<RouterOp, State, enqueue>(state);
}

}  // namespace

const Impl<RouterOp> kRouterCudaTile = {
    .name = "cuda_tile",
    .backend = Backend::kCuda,
    .order = [](const RouterDesc& desc) { return linear_gemv_order(gate_desc(desc)); },
    .layout = [](const RouterDesc&) { return &kCudaTileLayout; },
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
