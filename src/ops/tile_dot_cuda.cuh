// The dot products of one tile of 16 weight rows with up to 8 * kTokenTiles tokens, on the tensor cores.
//
// bf16 operands, fp32 accumulators. nvfp4: code and block scale become one bf16 without rounding: the code's bits moved
// under a bf16 exponent are w * 2^-126 (a subnormal for 0.5), times the scale * 2^119 gives w * s * 2^-7, exact for all
// codes and scales; the row's factor takes back 2^7. About 5 instructions for 2 weights.
// Order of additions: each of kWarps warps runs over chunks warp, warp + kWarps, ... with one mma chain, k16 steps in
// order; then the warps' sums are added in order. It depends on k alone.
#pragma once

#include "backend/cuda/convert.cuh"
#include "backend/cuda/mma.cuh"
#include "ops/tile_layout_cuda.h"

namespace assay::ops::tile {

// Two scales' bits s * 2^119 from an e4m3 byte, as a pair of equal bf16.
__device__ __forceinline__ uint32_t scale_pair(uint32_t code) {
  const uint32_t bits = __float_as_uint(__uint_as_float(code << 20) * 0x1p120f * 0x1p119f);
  return __byte_perm(bits, bits, 0x3232);
}

// Inputs 2i and 2i + 1 of a word of eight codes.
__device__ __forceinline__ uint32_t code_pair(uint32_t word, int i) {
  const uint32_t moved = word << (4 * i);
  return (moved & 0x80008000u) | ((moved >> 6) & 0x01C001C0u);
}

// A lane's bytes of one chunk, in global or (kShared) shared memory, and its operands of sub-chunk j: four pairs of
// inputs of row g in `low`, of row g + 8 in `high`.
template <numeric::WeightFormat kFormat>
struct RawChunk;

template <>
struct RawChunk<numeric::WeightFormat::kBf16> {
  uint4 rows[4][2];
  template <bool kShared, int kSubChunks = 4>
  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
#pragma unroll
    for (int j = 0; j < kSubChunks; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::byte* from = chunk + ((j * 2 + half) * 32 + lane) * 16;
        rows[j][half] = kShared ? *reinterpret_cast<const uint4*>(from) : cuda::load_stream(from);
      }
    }
  }
  __device__ __forceinline__ void operands(int j, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    low[0] = rows[j][0].x, low[1] = rows[j][0].y, low[2] = rows[j][0].z, low[3] = rows[j][0].w;
    high[0] = rows[j][1].x, high[1] = rows[j][1].y, high[2] = rows[j][1].z, high[3] = rows[j][1].w;
  }
};

template <>
struct RawChunk<numeric::WeightFormat::kNvfp4> {
  uint32_t codes[2][4];
  uint2 scales;
  template <bool kShared, int kSubChunks = 4>
  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    static_assert(kSubChunks == 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::byte* from = chunk + (half * 32 + lane) * 16;
      const uint4 words = kShared ? *reinterpret_cast<const uint4*>(from) : cuda::load_stream(from);
      codes[half][0] = words.x, codes[half][1] = words.y, codes[half][2] = words.z, codes[half][3] = words.w;
    }
    const std::byte* from = chunk + 1024 + lane / 2 * 8;
    scales = kShared ? *reinterpret_cast<const uint2*>(from) : cuda::load_stream8(from);
  }
  __device__ __forceinline__ void operands(int j, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    const uint32_t low_scale = scale_pair(scales.x >> (8 * j) & 0x7Fu);
    const uint32_t high_scale = scale_pair(scales.y >> (8 * j) & 0x7Fu);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = cuda::mul_bf16x2(code_pair(codes[0][j], i), low_scale);
      high[i] = cuda::mul_bf16x2(code_pair(codes[1][j], i), high_scale);
    }
  }
};

// acc[n] += tile x token tile n over chunks first, first + step, ... of `chunks`. x[n]: the 16-byte aligned row of this
// lane's token (tile n, token g); for a column that is no token any row will do: columns do not mix. kAhead: chunks
// whose loads are in flight together; it changes no bit. No branch stands between the loads.
template <numeric::WeightFormat kFormat, int kTokenTiles, int kAhead>
__device__ __forceinline__ void accumulate(float (&acc)[kTokenTiles][4], const std::byte* tile, int chunks, int first,
                                           int step, const cuda::Bf16Bits* const (&x)[kTokenTiles], int64_t k) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  constexpr int64_t kBytes = tile_chunk_bytes(kFormat);
  for (int base = first; base < chunks; base += step * kAhead) {
    RawChunk<kFormat> raw[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * step < chunks) raw[a].template load<false>(tile + (base + a * step) * kBytes, lane);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int chunk = base + a * step;
      if (chunk >= chunks) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = chunk * kTileChunk + 32 * j + 8 * t;
        const bool inside = column < k;  // past the end weights are zeros, and inputs must not be NaN
        uint4 values[kTokenTiles];
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          values[n] = *reinterpret_cast<const uint4*>(x[n] + (inside ? column : 0));
          values[n].x = inside ? values[n].x : 0;
          values[n].y = inside ? values[n].y : 0;
          values[n].z = inside ? values[n].z : 0;
          values[n].w = inside ? values[n].w : 0;
        }
        uint32_t low[4], high[4];
        raw[a].operands(j, low, high);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          cuda::mma_bf16(acc[n], low[0], high[0], low[1], high[1], values[n].x, values[n].y);
          cuda::mma_bf16(acc[n], low[2], high[2], low[3], high[3], values[n].z, values[n].w);
        }
      }
    }
  }
}

// Adds the accumulators of kWarps warps through shared memory, in order; the sum of (row, token) of the tile is then at
// shared[token * 17 + row], tokens 0 .. 8 * kTokenTiles - 1. `shared`: kWarps * 8 * kTokenTiles * 17 floats.
template <int kWarps, int kTokenTiles>
__device__ __forceinline__ void add_warps(const float (&acc)[kTokenTiles][4], float* shared) {
  constexpr int kPlane = 8 * kTokenTiles * 17;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  float* mine = shared + warp * kPlane;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int token = n * 8 + 2 * t;
    mine[token * 17 + g] = acc[n][0];
    mine[(token + 1) * 17 + g] = acc[n][1];
    mine[token * 17 + g + 8] = acc[n][2];
    mine[(token + 1) * 17 + g + 8] = acc[n][3];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kPlane; i += kWarps * 32) {
    if (i % 17 == 16) continue;
    float sum = shared[i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += shared[w * kPlane + i];
    shared[i] = sum;
  }
  __syncthreads();
}

}  // namespace assay::ops::tile
