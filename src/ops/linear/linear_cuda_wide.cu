// linear of bf16 for 17 to 64 tokens a block, in the order of linear_cuda_gemv.cu: its chains of chunks, bit for bit. A
// block of 8 warps takes several tiles of 16 outputs, so that the tokens' inputs, which come from L2 by cp.async in
// stages of 64 inputs a chain, are read once for all of them; weights go straight to registers.
//
// Bytes: every weight byte once for each 64 tokens, the inputs once a block. Bound: device memory; L2 for short
// matrices.
// H200: [12352, 2048] bf16 26.7 us for 64 tokens (48 % of the copy bandwidth).
#include "backend/cuda/arch.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_cuda_store.cuh"
#include "ops/tile_dot_cuda.cuh"

namespace assay::ops {
namespace {

constexpr auto kFormat = numeric::WeightFormat::kBf16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kChains = 4;  // of the matrices it is for
constexpr int kTiles = 3;   // of 16 outputs a warp
constexpr int kGroups = kWarps / kChains;
constexpr int kBlockTiles = kGroups * kTiles;
constexpr int kAhead = cuda::kSm120 ? 1 : 2;  // sub-chunks of weights in registers
constexpr int kSubChunks = 4;                 // of 32 inputs
constexpr int kStageSubs = 2;                 // sub-chunks of a stage
constexpr int kUnits = kStageSubs * 4;        // of 16 bytes

template <int kTokenTiles>
struct Shape {
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kChains * kTokens * kUnits * 16;  // [chain][token][unit]
  static constexpr int kPlane = kTokens * 17;                          // floats: a warp's sums of a tile
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kWarps* kPlane * 4);
  static_assert(kSharedBytes <= 101376);
};

// The operands of a tile's sub-chunks, loaded kAhead ahead.
class Weights {
 public:
  __device__ __forceinline__ void load_first(const std::byte* chunk) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load(chunk, j);
  }
  // Gives sub-chunk j and starts loading the one kAhead after it, of this chunk or the next (null: none).
  __device__ __forceinline__ void next(int j, const std::byte* chunk, const std::byte* after, uint32_t (&low)[4],
                                       uint32_t (&high)[4]) {
    raw_[j % kAhead].operands(0, low, high);
    const int ahead = j + kAhead;
    if (ahead < kSubChunks) {
      load(chunk, ahead);
    } else if (after != nullptr) {
      load(after, ahead - kSubChunks);
    }
  }

 private:
  __device__ __forceinline__ void load(const std::byte* chunk, int j) {
    raw_[j % kAhead].load<false, 1>(chunk + j * 1024, threadIdx.x % 32);
  }
  tile::RawChunk<kFormat> raw_[kAhead];  // of each only the first sub-chunk's registers are used
};

// Unit u of token r lies at u ^ 4 (r & 1): reads then meet no bank twice.
__device__ __forceinline__ int swizzled(int token, int unit) { return unit ^ (token & 1) << 2; }

// Starts copying stage `stage`: of each chain's chunk of round stage / 2, its half stage % 2.
template <class S>
__device__ __forceinline__ void load_inputs(std::byte* to, const LinearOp::Args& args, int first, int end, int stage,
                                            int k) {
  const auto* x = static_cast<const cuda::Bf16Bits*>(args.x.data);
  constexpr int kStagesOfChunk = kSubChunks / kStageSubs;
#pragma unroll
  for (int i = threadIdx.x; i < kChains * S::kTokens * kUnits; i += kThreads) {
    const int unit = i % kUnits, token = i / kUnits % S::kTokens, chain = i / kUnits / S::kTokens;
    const int chunk = stage / kStagesOfChunk * kChains + chain;
    const int column = chunk * static_cast<int>(kTileChunk) + stage % kStagesOfChunk * kStageSubs * 32 + unit * 8;
    const bool valid = column < k;
    const cuda::Bf16Bits* from = valid ? x + min(first + token, end - 1) * args.x.stride + column : x;
    cuda::copy_async16(cuda::shared_address(to + (i - unit + swizzled(token, unit)) * 16), from, valid);
  }
}

template <int kTokenTiles>
__global__ void __launch_bounds__(kThreads, 1) linear_wide(LinearTiles weight, LinearOp::Args args, TokenRange range) {
  using S = Shape<kTokenTiles>;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chain = warp % kChains, g = lane / 4, t = lane % 4;
  const int k = static_cast<int>(weight.desc.k), chunks = static_cast<int>(tile_chunks(k));
  const int tiles = static_cast<int>((weight.desc.n + kTileRows - 1) / kTileRows);
  constexpr int64_t kChunkBytes = tile_chunk_bytes(kFormat);
  const int64_t bytes = tile_bytes(kFormat, k);
  const int first_tile = static_cast<int>(blockIdx.x) * kBlockTiles + warp / kChains * kTiles;
  // A tile past the last is read as the last one; its sums are not stored.
  const std::byte* tile[kTiles];
  Weights weights[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    tile[m] = weight.tiles + min(first_tile + m, tiles - 1) * bytes;
    if (chain < chunks) weights[m].load_first(tile[m] + chain * kChunkBytes);
  }
  cuda::begin_overlapped();
  const TokenSpan span = token_span(args.tokens, range);
  const int first = span.first + blockIdx.y * S::kTokens;
  if (first >= span.end) return;
  const int rounds = (chunks + kChains - 1) / kChains, stages = rounds * kSubChunks / kStageSubs;
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < stages) load_inputs<S>(shared + stage * S::kStageBytes, args, first, span.end, stage, k);
    cuda::commit_copies();
  }
  float acc[kTiles][kTokenTiles][4] = {};
  const std::byte* inputs = nullptr;
  for (int round = 0; round < rounds; ++round) {
    const int chunk = round * kChains + chain, after = chunk + kChains;
#pragma unroll
    for (int j = 0; j < kSubChunks; ++j) {
      if (j % kStageSubs == 0) {
        const int stage = (round * kSubChunks + j) / kStageSubs, ahead = stage + S::kStages - 1;
        cuda::wait_copies<S::kStages - 2>();
        __syncthreads();
        if (ahead < stages) {
          load_inputs<S>(shared + ahead % S::kStages * S::kStageBytes, args, first, span.end, ahead, k);
        }
        cuda::commit_copies();
        inputs = shared + stage % S::kStages * S::kStageBytes + (chain * S::kTokens + g) * kUnits * 16;
      }
      if (chunk >= chunks) continue;
      uint32_t low[kTiles][4], high[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        weights[m].next(j, tile[m] + chunk * kChunkBytes, after < chunks ? tile[m] + after * kChunkBytes : nullptr,
                        low[m], high[m]);
      }
      const std::byte* mine = inputs + swizzled(g, j % kStageSubs * 4 + t) * 16;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const uint4 x = *reinterpret_cast<const uint4*>(mine + n * 8 * kUnits * 16);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          cuda::mma_bf16(acc[m][n], low[m][0], high[m][0], low[m][1], high[m][1], x.x, x.y);
          cuda::mma_bf16(acc[m][n], low[m][2], high[m][2], low[m][3], high[m][3], x.z, x.w);
        }
      }
    }
  }
  cuda::wait_copies<0>();
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    __syncthreads();
    float* mine = sums + warp * S::kPlane;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int token = n * 8 + 2 * t;
      mine[token * 17 + g] = acc[m][n][0];
      mine[(token + 1) * 17 + g] = acc[m][n][1];
      mine[token * 17 + g + 8] = acc[m][n][2];
      mine[(token + 1) * 17 + g + 8] = acc[m][n][3];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kGroups * S::kTokens * 16; i += kThreads) {
      const int row = i % 16, group = i / 16 % kGroups, column = i / 16 / kGroups;
      const int64_t of = int64_t{blockIdx.x} * kBlockTiles + group * kTiles + m, n = of * kTileRows + row;
      if (first + column >= span.end || n >= weight.desc.n) continue;
      const float* chains = sums + group * kChains * S::kPlane + column * 17 + row;
      float sum = chains[0];
#pragma unroll
      for (int c = 1; c < kChains; ++c) sum += chains[c * S::kPlane];
      store_output(args, first + column, n, sum * weight.factors[n]);
    }
  }
}

template <int kTokenTiles>
void launch_wide(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch) {
  using S = Shape<kTokenTiles>;
  const dim3 grid(cuda::blocks_for(weight.desc.n, kTileRows * kBlockTiles),
                  cuda::blocks_for(most_tokens(args.tokens, range), S::kTokens));
  cuda::launch("linear cuda_gemv wide", cuda::Start::kOverlap, linear_wide<kTokenTiles>, grid, kThreads,
               S::kSharedBytes, launch.stream, weight, args, range);
}

template <int kTokenTiles>
void prepare() {
  cuda::check(cudaFuncSetAttribute(linear_wide<kTokenTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Shape<kTokenTiles>::kSharedBytes),
              "shared memory of linear cuda_gemv");
}

}  // namespace

bool linear_wide_pays(const LinearDesc& desc, int chains, int64_t tokens) {
  return desc.format == kFormat && chains == kChains && tokens > 16;
}

void prepare_linear_wide() {
  prepare<4>();
  prepare<8>();
}

void enqueue_linear_wide(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range,
                         const Launch& launch) {
  if (most_tokens(args.tokens, range) <= 32) {
    launch_wide<4>(weight, args, range, launch);
  } else {
    launch_wide<8>(weight, args, range, launch);
  }
}

}  // namespace assay::ops
