// linear for many tokens: one block of 8 warps a tile of 192 (nvfp4: 128) outputs and 128 tokens; a warp 48 (32)
// outputs and 64 tokens.
//
// Weights (as packed) and activations go through shared memory by cp.async in two stages: of 64 inputs for bf16 (81,920
// bytes), of 128 for nvfp4 (83,968), which is decoded exactly into bf16 operands in registers. Activation rows are
// stored in 16-byte units, unit u of token r at u ^ 4 (r & 1): a fragment's reads then meet no bank twice. Order of
// additions: one mma chain over k. Bound: the tensor cores' mma.sync rate.
// H200, 2048 tokens: 121 to 170 TFLOP/s in bf16, 180 to 186 in nvfp4.
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_cuda_store.cuh"
#include "ops/linear/linear_rows.h"
#include "ops/plan_cuda.h"
#include "ops/tile_dot_cuda.cuh"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

constexpr int kThreads = 256;
constexpr int kBlockTokens = 128;

template <WeightFormat kFormat>
struct Shape {
  static constexpr bool kPacked = kFormat == WeightFormat::kNvfp4;
  static constexpr int kInputs = kPacked ? 128 : 64;  // of a stage
  static constexpr int kStages = 2;
  static constexpr int kWarpTiles = kPacked ? 2 : 3;  // of 16 outputs
  static constexpr int kBlockTiles = 4 * kWarpTiles;
  static constexpr int kTileBytes = kPacked ? 1152 : 2048;
  static constexpr int kWeightBytes = kBlockTiles * kTileBytes;
  static constexpr int kUnits = kInputs / 8;  // of 16 bytes in a token's row
  static constexpr int kStageBytes = kWeightBytes + kBlockTokens * kInputs * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes <= 101376);
};

__device__ __forceinline__ int swizzled(int token, int unit) { return unit ^ ((token & 1) << 2); }

// Starts copying stage `step` of the inputs.
template <WeightFormat kFormat>
__device__ __forceinline__ void load_stage(std::byte* stage, const LinearTiles& weight, const LinearOp::Args& args,
                                           int first_token, int end_token, int step, bool aligned) {
  using S = Shape<kFormat>;
  const int64_t k = weight.desc.k, tiles = (weight.desc.n + kTileRows - 1) / kTileRows;
  constexpr int kTileUnits = S::kTileBytes / 16;
  for (int i = threadIdx.x; i < S::kBlockTiles * kTileUnits; i += kThreads) {
    const int64_t tile = int64_t{blockIdx.x} * S::kBlockTiles + i / kTileUnits;
    const std::byte* from =
        weight.tiles + tile * tile_bytes(kFormat, k) + int64_t{step} * S::kTileBytes + i % kTileUnits * 16;
    cuda::copy_async16(cuda::shared_address(stage + i * 16), from, tile < tiles);
  }
  std::byte* activations = stage + S::kWeightBytes;
  const auto* x = static_cast<const cuda::Bf16Bits*>(args.x.data);
  for (int i = threadIdx.x; i < kBlockTokens * S::kUnits; i += kThreads) {
    const int row = i / S::kUnits, unit = i % S::kUnits;
    const int64_t column = int64_t{step} * S::kInputs + unit * 8;
    const bool valid = first_token + row < end_token && column < k;
    const cuda::Bf16Bits* from = valid ? x + (first_token + row) * args.x.stride + column : x;
    std::byte* to = activations + (row * S::kUnits + swizzled(row, unit)) * 16;
    if (aligned) {
      cuda::copy_async16(cuda::shared_address(to), from, valid);
    } else {
      *reinterpret_cast<uint4*>(to) = valid ? cuda::load8(from, false) : uint4{0, 0, 0, 0};
    }
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void multiply_stage(float (&acc)[Shape<kFormat>::kWarpTiles][8][4], const std::byte* stage) {
  using S = Shape<kFormat>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  constexpr int kSubChunks = S::kInputs / 32;
  const std::byte* tiles = stage + warp % 4 * S::kWarpTiles * S::kTileBytes;
  tile::RawChunk<kFormat> raw[S::kWarpTiles];
  if constexpr (S::kPacked) {
#pragma unroll
    for (int m = 0; m < S::kWarpTiles; ++m) raw[m].template load<true>(tiles + m * S::kTileBytes, lane);
  }
  const std::byte* activations = stage + S::kWeightBytes;
#pragma unroll(S::kPacked ? kSubChunks : 1)
  for (int j = 0; j < kSubChunks; ++j) {
    if constexpr (!S::kPacked) {  // 1024 bytes a sub-chunk: loaded late, to spare registers
#pragma unroll
      for (int m = 0; m < S::kWarpTiles; ++m) {
        raw[m].template load<true, 1>(tiles + m * S::kTileBytes + j * 1024, lane);
      }
    }
    uint32_t low[S::kWarpTiles][4], high[S::kWarpTiles][4];
#pragma unroll
    for (int m = 0; m < S::kWarpTiles; ++m) raw[m].operands(S::kPacked ? j : 0, low[m], high[m]);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int row = warp / 4 * 64 + n * 8 + g;
      const uint4 x = *reinterpret_cast<const uint4*>(activations + (row * S::kUnits + swizzled(row, j * 4 + t)) * 16);
#pragma unroll
      for (int m = 0; m < S::kWarpTiles; ++m) {
        cuda::mma_bf16(acc[m][n], low[m][0], high[m][0], low[m][1], high[m][1], x.x, x.y);
        cuda::mma_bf16(acc[m][n], low[m][2], high[m][2], low[m][3], high[m][3], x.z, x.w);
      }
    }
  }
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    linear_gemm(LinearTiles weight, LinearOp::Args args, TokenRange range, bool aligned) {
  cuda::begin_overlapped();
  using S = Shape<kFormat>;
  extern __shared__ __align__(128) std::byte shared[];
  const TokenSpan span = token_span(args.tokens, range);
  const int first = span.first + blockIdx.y * kBlockTokens;
  if (first >= span.end) return;
  const int steps = static_cast<int>(tile_chunks(weight.desc.k) * (kTileChunk / S::kInputs));
  float acc[S::kWarpTiles][8][4] = {};
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < steps) {
      load_stage<kFormat>(shared + stage * S::kStageBytes, weight, args, first, span.end, stage, aligned);
    }
    cuda::commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    cuda::wait_copies<S::kStages - 2>();
    __syncthreads();
    const int ahead = step + S::kStages - 1;
    if (ahead < steps) {
      load_stage<kFormat>(shared + ahead % S::kStages * S::kStageBytes, weight, args, first, span.end, ahead, aligned);
    }
    cuda::commit_copies();
    multiply_stage<kFormat>(acc, shared + step % S::kStages * S::kStageBytes);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < S::kWarpTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t n =
          (int64_t{blockIdx.x} * S::kBlockTiles + warp % 4 * S::kWarpTiles + m) * kTileRows + g + 8 * half;
      if (n >= weight.desc.n) continue;
      const float factor = weight.factors[n];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int token = first + warp / 4 * 64 + i / 2 * 8 + 2 * t + i % 2;
        if (token < span.end) store_output(args, token, n, acc[m][i / 2][half * 2 + i % 2] * factor);
      }
    }
  }
}

template <WeightFormat kFormat>
void launch_format(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch) {
  const dim3 grid(cuda::blocks_for(weight.desc.n, Shape<kFormat>::kBlockTiles * kTileRows),
                  cuda::blocks_for(most_tokens(args.tokens, range), kBlockTokens));
  cuda::launch("linear cuda_gemm", cuda::Start::kOverlap, linear_gemm<kFormat>, grid, kThreads,
               Shape<kFormat>::kSharedBytes, launch.stream, weight, args, range, aligned_rows(args.x));
}

void enqueue(const LinearTiles& weight, const LinearOp::Args& args, const Launch& launch) {
  enqueue_linear_gemm(weight, args, TokenRange::kAll, launch);
}

}  // namespace

OrderId linear_gemm_order(const LinearDesc&) { return order_id("tile16 mma, one chain"); }

void prepare_linear_gemm() {
  cuda::check(cudaFuncSetAttribute(linear_gemm<WeightFormat::kBf16>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Shape<WeightFormat::kBf16>::kSharedBytes),
              "shared memory of linear cuda_gemm");
  cuda::check(cudaFuncSetAttribute(linear_gemm<WeightFormat::kNvfp4>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Shape<WeightFormat::kNvfp4>::kSharedBytes),
              "shared memory of linear cuda_gemm");
}

void enqueue_linear_gemm(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range,
                         const Launch& launch) {
  if (weight.desc.format == WeightFormat::kNvfp4) {
    launch_format<WeightFormat::kNvfp4>(weight, args, range, launch);
  } else {
    launch_format<WeightFormat::kBf16>(weight, args, range, launch);
  }
}

const Impl<LinearOp> kLinearCudaGemm = {
    .name = "cuda_gemm",
    .backend = Backend::kCuda,
    .order = linear_gemm_order,
    .layout = [](const LinearDesc&) { return &kCudaTileLayout; },
    .can_run = refuse_linear_tiles,
    .workspace_bytes = cuda_row::no_workspace<LinearOp>,
    .make = [](const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<LinearOp>> {
      ASSAY_ASSIGN(const LinearTiles tiles, linear_tiles(desc, context.weights, weights.matrix));
      return cuda_row::make_plan<LinearOp, LinearTiles, enqueue>(tiles);
    },
};

}  // namespace assay::ops
