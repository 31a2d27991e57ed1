// router: the gate's logits by linear's few-token kernel into F32, then one block a token: warp 0 chooses, warp 1 takes
// the shared gate's dot product. Workspace: the logits. Bytes: the gate once for each 32 tokens.
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

__device__ __forceinline__ uint64_t warp_best(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(cuda::kFullWarp, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// kLane: logits of a lane, expert lane + 32 n.
template <int kLane>
__device__ void choose(const RouterDesc& desc, const RouterOp::Args& args, const float* logits, int64_t t) {
  const int lane = threadIdx.x;
  uint64_t ranks[kLane];  // 0: none, or taken
  bool finite = true;
#pragma unroll
  for (int n = 0; n < kLane; ++n) {
    const int e = lane + 32 * n;
    ranks[n] = 0;
    if (e >= desc.experts) continue;
    const float logit = cuda::round_bf16(logits[e]);
    ranks[n] = rank(logit, e);
    finite = finite && logit < INFINITY;
    if (args.logits.data != nullptr) static_cast<float*>(args.logits.data)[t * args.logits.stride + e] = logit;
  }
  finite = __all_sync(cuda::kFullWarp, finite);
  const auto* forced = static_cast<const int32_t*>(args.forced_ids.data);
  int mine = 0;  // lane i: the i-th choice
  for (int i = 0; i < desc.top_k; ++i) {
    int chosen = 0;
    if (forced != nullptr) {
      chosen = forced[t * args.forced_ids.stride + i];
    } else {
      uint64_t best = 0;
#pragma unroll
      for (int n = 0; n < kLane; ++n) best = ranks[n] > best ? ranks[n] : best;
      best = warp_best(best);
#pragma unroll
      for (int n = 0; n < kLane; ++n) ranks[n] = ranks[n] == best ? 0 : ranks[n];
      chosen = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
    }
    if (lane == i) mine = chosen;
  }
  const bool holds = lane < desc.top_k;
  const float logit = holds ? cuda::round_bf16(logits[mine]) : -INFINITY;
  const float largest = cuda::warp_max(isnan(logit) ? -INFINITY : logit);
  const float weight = holds ? expf(logit - largest) : 0.0f;
  const float sum = cuda::warp_sum(weight);
  if (!holds) return;
  static_cast<int32_t*>(args.ids.data)[t * args.ids.stride + lane] = mine;
  static_cast<float*>(args.weights.data)[t * args.weights.stride + lane] = finite ? weight / sum : NAN;
}

// One warp: eight inputs a lane at a time.
__device__ float shared_dot(const State& state, const RouterOp::Args& args, int64_t t, bool aligned) {
  const auto* x = static_cast<const cuda::Bf16Bits*>(args.x.data) + t * args.x.stride;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32 * 8; i < state.desc.hidden; i += 256) {
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
  return cuda::warp_sum(sum);
}

template <int kLane>
__global__ void __launch_bounds__(64)
    router_choose(State state, RouterOp::Args args, const float* logits, bool aligned) {
  cuda::begin_overlapped();
  const int64_t t = blockIdx.x;
  if (t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  if (threadIdx.x < 32) {
    choose<kLane>(state.desc, args, logits + t * state.desc.experts, t);
  } else if (state.desc.shared_gate) {
    const float sum = shared_dot(state, args, t, aligned);
    if (threadIdx.x == 32) {
      static_cast<float*>(args.shared_scale.data)[t * args.shared_scale.stride] = cuda::sigmoid(cuda::round_bf16(sum));
    }
  }
}

void enqueue(const State& state, const RouterOp::Args& args, const Launch& launch) {
  const View logits = Workspace(launch.workspace).take(DType::kF32, args.tokens.total, state.desc.experts);
  enqueue_linear_gemv(state.gate, {args.tokens, args.x, {}, logits}, TokenRange::kAll, launch);
  const bool aligned = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0;
  const auto kernel = state.desc.experts <= 256   ? router_choose<8>
                      : state.desc.experts <= 512 ? router_choose<16>
                                                  : router_choose<32>;
  cuda::launch("router cuda_tile choose", cuda::Start::kOverlap, kernel, args.tokens.total, 64, 0, launch.stream, state,
               args, static_cast<const float*>(logits.data), aligned);
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
