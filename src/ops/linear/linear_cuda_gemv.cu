// linear for few tokens: one block of warps a tile of 16 outputs and 8 to 64 tokens; the warps share the inputs. A
// matrix of many outputs has 4 warps a tile, so that all its tiles are on the chip at once; one of few has more. The
// first weights are under way before the kernel ahead has ended. More than 16 tokens of a long bf16 matrix:
// linear_cuda_wide.cu.
//
// Bytes: every weight byte once for each 64 tokens; the tokens' inputs come from L1. Bound: device memory.
// H200: [12352, 2048] bf16 12.7 us for 1 and 8 tokens (97 % of the copy bandwidth), nvfp4 7.4 us (47 %).
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/checked_source.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_cuda_store.cuh"
#include "ops/linear/linear_rows.h"
#include "ops/plan_cuda.h"
#include "ops/tile_dot_cuda.cuh"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

constexpr int64_t kManyTiles = 512;

constexpr int warps_for(WeightFormat format, bool many_tiles) {
  return many_tiles ? 4 : format == WeightFormat::kNvfp4 ? 16 : 8;
}
bool many_tiles(const LinearDesc& desc) { return desc.n >= kManyTiles * kTileRows; }

// Chunks in flight together a warp: two where the registers allow.
constexpr int ahead_for(WeightFormat format, bool many_tiles, int token_tiles) {
  const bool packed = format == WeightFormat::kNvfp4;
  return (packed && many_tiles) || (!many_tiles && token_tiles <= 2) ? 2 : 1;
}

template <WeightFormat kFormat, bool kMany, int kTokenTiles>
__global__ void __launch_bounds__(warps_for(kFormat, kMany) * 32, 1)
    linear_gemv(LinearTiles weight, LinearOp::Args args, TokenRange range) {
  constexpr int kWarps = warps_for(kFormat, kMany), kTokens = 8 * kTokenTiles;
  __shared__ float sums[kWarps * kTokens * 17];
  const int warp = threadIdx.x / 32, chunks = static_cast<int>(tile_chunks(weight.desc.k));
  const std::byte* tile = weight.tiles + blockIdx.x * tile_bytes(kFormat, weight.desc.k);
  tile::ChunkGroup<kFormat, ahead_for(kFormat, kMany, kTokenTiles)> group;
  group.load(tile, chunks, warp, kWarps);
  cuda::begin_overlapped();
  const TokenSpan span = token_span(args.tokens, range);
  const int first = span.first + blockIdx.y * kTokens;
  if (first >= span.end) return;
  const auto* x = static_cast<const cuda::Bf16Bits*>(args.x.data);
  const cuda::Bf16Bits* rows[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    rows[n] = x + min(first + n * 8 + static_cast<int>(threadIdx.x) % 32 / 4, span.end - 1) * args.x.stride;
  }
  float acc[kTokenTiles][4] = {};
  tile::accumulate(acc, group, tile, chunks, warp, kWarps,
                   tile::Inputs<kTokenTiles>(rows, static_cast<int>(weight.desc.k)));
  tile::add_warps<kWarps, kTokenTiles>(acc, sums);
  for (int i = threadIdx.x; i < kTokens * 16; i += kWarps * 32) {
    const int token = first + i / 16;
    const int64_t n = int64_t{blockIdx.x} * 16 + i % 16;
    if (token < span.end && n < weight.desc.n) {
      store_output(args, token, n, sums[i / 16 * 17 + i % 16] * weight.factors[n]);
    }
  }
}

template <WeightFormat kFormat, bool kMany>
void launch_tiles(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch) {
  const int64_t tokens = most_tokens(args.tokens, range);
  const unsigned tiles = cuda::blocks_for(weight.desc.n, kTileRows);
  constexpr int kWarps = warps_for(kFormat, kMany);
  const auto start = [&](auto kernel, int64_t per_block) {
    cuda::launch("linear cuda_gemv", cuda::Start::kOverlap, kernel, dim3(tiles, cuda::blocks_for(tokens, per_block)),
                 kWarps * 32, 0, launch.stream, weight, args, range);
  };
  if (tokens <= 8) {
    start(linear_gemv<kFormat, kMany, 1>, 8);
  } else if (tokens <= 16) {
    start(linear_gemv<kFormat, kMany, 2>, 16);
  } else if (tokens <= 32 || kWarps == 16) {
    start(linear_gemv<kFormat, kMany, 4>, 32);
  } else if constexpr (kWarps < 16) {  // 16 warps' sums of 64 tokens pass 48 KiB
    start(linear_gemv<kFormat, kMany, 8>, 64);
  }
}

void enqueue(const LinearTiles& weight, const LinearOp::Args& args, const Launch& launch) {
  enqueue_linear_gemv(weight, args, TokenRange::kAll, launch);
}

}  // namespace

Refusal refuse_linear_tiles(const LinearDesc& desc, const DeviceCaps&) {
  if (!tile_format(desc.format)) return "weights must be bf16 or nvfp4";
  if (desc.activation != DType::kBf16) return "activations must be bf16";
  if (desc.k % 8 != 0) return "k must be a multiple of 8";
  return refuse_weight_only(desc);
}

Result<LinearTiles> linear_tiles(const LinearDesc& desc, WeightProvider& weights, WeightId id, const Layout& layout) {
  ASSAY_TRY(checked_source(weights, id, desc.n, desc.k, desc.format));
  ASSAY_ASSIGN(const PackedWeight* packed, weights.get(id, &layout));
  prepare_linear_gemm();
  prepare_linear_wide();
  const auto* factors = reinterpret_cast<const float*>(packed->data + tile_factor_offset(desc.format, desc.n, desc.k));
  return LinearTiles{desc, packed->data, factors};
}

OrderId linear_gemv_order(const LinearDesc& desc) {
  switch (warps_for(desc.format, many_tiles(desc))) {
    case 4:
      return order_id("tile16 mma, 4 warps");
    case 8:
      return order_id("tile16 mma, 8 warps");
  }
  return order_id("tile16 mma, 16 warps");
}

void enqueue_linear_gemv(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range,
                         const Launch& launch) {
  if (!aligned_rows(args.x)) return enqueue_linear_gemm(weight, args, range, launch);
  const bool packed = weight.desc.format == WeightFormat::kNvfp4, many = many_tiles(weight.desc);
  if (linear_wide_pays(weight.desc, warps_for(weight.desc.format, many), most_tokens(args.tokens, range))) {
    return enqueue_linear_wide(weight, args, range, launch);
  }
  if (packed && many) launch_tiles<WeightFormat::kNvfp4, true>(weight, args, range, launch);
  if (packed && !many) launch_tiles<WeightFormat::kNvfp4, false>(weight, args, range, launch);
  if (!packed && many) launch_tiles<WeightFormat::kBf16, true>(weight, args, range, launch);
  if (!packed && !many) launch_tiles<WeightFormat::kBf16, false>(weight, args, range, launch);
}

const Impl<LinearOp> kLinearCudaGemv = {
    .name = "cuda_gemv",
    .backend = Backend::kCuda,
    .order = linear_gemv_order,
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
