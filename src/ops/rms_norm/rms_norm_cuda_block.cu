// rms_norm: one block of 8 warps a chunk wider than 512 values, else one warp a chunk. Bytes: x and y once, x twice
// (the second time from L1) of rows wider than 2,048. Bound: latency at few tokens, device memory at many.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/file_layout_cuda.h"
#include "ops/plan_cuda.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kWarps = 8;
constexpr int64_t kNarrow = 512;

struct State {
  RmsNormDesc desc;
  const float* weight = nullptr;
};

__device__ __forceinline__ void unpack(const uint4& from, float (&to)[8]) {
  to[0] = cuda::bf16_low(from.x), to[1] = cuda::bf16_high(from.x);
  to[2] = cuda::bf16_low(from.y), to[3] = cuda::bf16_high(from.y);
  to[4] = cuda::bf16_low(from.z), to[5] = cuda::bf16_high(from.z);
  to[6] = cuda::bf16_low(from.w), to[7] = cuda::bf16_high(from.w);
}

__device__ __forceinline__ float normed(const RmsNormDesc& desc, float n, float w, float z) {
  if (desc.kind == NormKind::kZeroCentred) return n * (1.0f + w);
  return n * w * (desc.sigmoid_gate ? cuda::sigmoid(z) : cuda::silu(z));
}

__device__ __forceinline__ void load_weights(const float* from, float (&to)[8]) {
  const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// A lane takes groups of 8 neighbouring values, whether the rows are aligned or not. Its first group, mostly the only
// one, stays in registers, and that group's weights are on their way before the kernel ahead has ended.
template <bool kBlock>
__global__ void __launch_bounds__(kWarps * 32)
    rms_norm(State state, RmsNormOp::Args args, bool aligned, uint32_t* flags) {
  __shared__ float scratch[kWarps];
  const RmsNormDesc& desc = state.desc;
  const int begin = (kBlock ? threadIdx.x : threadIdx.x % 32) * 8, step = (kBlock ? kWarps * 32 : 32) * 8;
  float weights[8] = {};
  if (begin < desc.width) load_weights(state.weight + begin, weights);
  cuda::begin_overlapped();
  const int64_t chunk = kBlock ? blockIdx.x : int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t t = chunk / desc.groups, first = chunk % desc.groups * desc.width;
  if (t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  const int64_t row = args.gather == nullptr ? t : args.gather[t];
  const auto* x = static_cast<const Bf16Bits*>(args.x.data) + row * args.x.stride + first;
  const auto* z = static_cast<const Bf16Bits*>(args.z.data) + t * args.z.stride + first;
  auto* y = static_cast<Bf16Bits*>(args.y.data) + t * args.y.stride + first;
  const bool gated = desc.kind == NormKind::kGated;
  float squares = 0.0f;
  bool finite = true;
  const auto load = [&](int64_t i, float(&values)[8], float(&gates)[8]) {
    unpack(cuda::load8(x + i, aligned), values);
    if (gated) unpack(cuda::load8(z + i, aligned), gates);
  };
  const auto add = [&](const float(&values)[8]) {
#pragma unroll
    for (float value : values) {
      finite = finite && isfinite(value);
      squares = fmaf(value, value, squares);
    }
  };
  float held[8] = {}, held_gates[8] = {};
  if (begin < desc.width) load(begin, held, held_gates);
  add(held);
  for (int64_t i = begin + step; i < desc.width; i += step) {
    float values[8];
    unpack(cuda::load8(x + i, aligned), values);
    add(values);
  }
  squares = kBlock ? cuda::block_sum<kWarps>(squares, scratch) : cuda::warp_sum(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(desc.width) + desc.eps);
  const auto store = [&](int64_t i, const float(&values)[8], const float(&gates)[8]) {
    float out[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = normed(desc, values[j] * scale, weights[j], gates[j]);
    const uint32_t pairs[4] = {cuda::to_bf16_pair(out[0], out[1]), cuda::to_bf16_pair(out[2], out[3]),
                               cuda::to_bf16_pair(out[4], out[5]), cuda::to_bf16_pair(out[6], out[7])};
    if (aligned) {
      *reinterpret_cast<uint4*>(y + i) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) y[i + j] = static_cast<Bf16Bits>(pairs[j / 2] >> (j % 2 * 16));
    }
  };
  if (begin < desc.width) store(begin, held, held_gates);
  for (int64_t i = begin + step; i < desc.width; i += step) {
    load(i, held, held_gates);
    load_weights(state.weight + i, weights);
    store(i, held, held_gates);
  }
  if (!gated) cuda::flag(flags, Sentinel::kNonFiniteResidual, !finite);
}

bool aligned_rows(const ConstView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride % 8 == 0;
}

void enqueue(const State& state, const RmsNormOp::Args& args, const Launch& launch) {
  const int64_t chunks = args.tokens.total * state.desc.groups;
  const bool wide = state.desc.width > kNarrow;
  const bool aligned = aligned_rows(args.x) && aligned_rows(args.y) && aligned_rows(args.z);
  cuda::launch("rms_norm cuda_block", cuda::Start::kOverlap, wide ? rms_norm<true> : rms_norm<false>,
               wide ? static_cast<unsigned>(chunks) : cuda::blocks_for(chunks, kWarps), kWarps * 32, 0, launch.stream,
               state, args, aligned, cuda_row::flag_word(launch));
}

}  // namespace

const Impl<RmsNormOp> kRmsNormCudaBlock = {
    .name = "cuda_block",
    .backend = Backend::kCuda,
    .order =
        [](const RmsNormDesc& desc) {
          return desc.width > kNarrow ? order_id("256 lanes of 8, butterfly, 8 warps")
                                      : order_id("32 lanes of 8, butterfly");
        },
    .layout = cuda_row::no_layout<RmsNormOp>,
    .can_run = [](const RmsNormDesc& desc, const DeviceCaps&) -> Refusal {
      if (desc.activation != DType::kBf16) return "activations must be bf16";
      if (desc.width % 8 != 0) return "width must divide by 8";
      return std::nullopt;
    },
    .workspace_bytes = cuda_row::no_workspace<RmsNormOp>,
    .make = [](const RmsNormDesc& desc, const Bucket&, const RmsNormOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<RmsNormOp>> {
      ASSAY_ASSIGN(const float* weight, cuda_f32_matrix(context.weights, weights.weight, 1, desc.width));
      return cuda_row::make_plan<RmsNormOp, State, enqueue>({desc, weight});
    },
};

}  // namespace assay::ops
