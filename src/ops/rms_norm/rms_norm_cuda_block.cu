// rms_norm: one block of 8 warps a chunk wider than 512 values, else one warp a chunk. Bytes: x twice (the second time
// from L1) and y once. Bound: latency at few tokens, device memory at many.
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

// A lane takes groups of 8 neighbouring values, whether the rows are aligned or not.
template <bool kBlock>
__global__ void __launch_bounds__(kWarps * 32)
    rms_norm(State state, RmsNormOp::Args args, bool aligned, uint32_t* flags) {
  cuda::begin_overlapped();
  __shared__ float scratch[kWarps];
  const RmsNormDesc& desc = state.desc;
  const int64_t chunk = kBlock ? blockIdx.x : int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t t = chunk / desc.groups, first = chunk % desc.groups * desc.width;
  if (t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  const int64_t row = args.gather == nullptr ? t : args.gather[t];
  const auto* x = static_cast<const Bf16Bits*>(args.x.data) + row * args.x.stride + first;
  const auto* z = static_cast<const Bf16Bits*>(args.z.data) + t * args.z.stride + first;
  auto* y = static_cast<Bf16Bits*>(args.y.data) + t * args.y.stride + first;
  const int begin = (kBlock ? threadIdx.x : threadIdx.x % 32) * 8, step = (kBlock ? kWarps * 32 : 32) * 8;
  float squares = 0.0f;
  bool finite = true;
  for (int64_t i = begin; i < desc.width; i += step) {
    float values[8];
    unpack(cuda::load8(x + i, aligned), values);
#pragma unroll
    for (float value : values) {
      finite = finite && isfinite(value);
      squares = fmaf(value, value, squares);
    }
  }
  squares = kBlock ? cuda::block_sum<kWarps>(squares, scratch) : cuda::warp_sum(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(desc.width) + desc.eps);
  const bool gated = desc.kind == NormKind::kGated;
  for (int64_t i = begin; i < desc.width; i += step) {
    float values[8], gates[8] = {};
    unpack(cuda::load8(x + i, aligned), values);
    if (gated) unpack(cuda::load8(z + i, aligned), gates);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = normed(desc, values[j] * scale, state.weight[i + j], gates[j]);
    const uint32_t pairs[4] = {cuda::to_bf16_pair(values[0], values[1]), cuda::to_bf16_pair(values[2], values[3]),
                               cuda::to_bf16_pair(values[4], values[5]), cuda::to_bf16_pair(values[6], values[7])};
    if (aligned) {
      *reinterpret_cast<uint4*>(y + i) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) y[i + j] = static_cast<Bf16Bits>(pairs[j / 2] >> (j % 2 * 16));
    }
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
