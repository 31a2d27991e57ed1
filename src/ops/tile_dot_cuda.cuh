// The dot products of one tile of 16 weight rows with up to 8 * kTokenTiles tokens, on the tensor cores.
//
// bf16 operands, fp32 accumulators. nvfp4: code and block scale become one bf16 without rounding: the code's bits
// turned under a bf16 exponent are w * 2^-126 (a subnormal for 0.5), times the scale * 2^119 gives w * s * 2^-7, exact
// for all codes and scales; the row's factor takes back 2^7. About 2 integer instructions and a product for 2 weights.
// Order of additions: each of kWarps warps runs over chunks warp, warp + kWarps, ... with one mma chain, k16 steps in
// order; then the warps' sums are added in order. It depends on k alone.
#pragma once

#include "backend/cuda/convert.cuh"
#include "backend/cuda/mma.cuh"
#include "ops/tile_layout_cuda.h"

namespace assay::ops::tile {

// The bits of byte j of `scales`, s * 2^119 as bf16, twice.
__device__ __forceinline__ uint32_t scale_pair(uint32_t scales, int j) {
  constexpr uint32_t kBias = (119 + 127 - 10) << 7;
  return __byte_perm(scales, 0, 0x4040u + 0x0101u * j) * 16 + (kBias << 16 | kBias);
}

// Inputs 2i and 2i + 1 of a word of eight codes.
__device__ __forceinline__ uint32_t code_pair(uint32_t word, int i) {
  const uint32_t turned = __funnelshift_r(word, word, tile_turn(i));
  if (i < 3) return turned & 0x81C081C0u;
  return (turned & 0x81808180u) | (word << 2 & 0x00400040u);
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
    const uint32_t low_scale = scale_pair(scales.x, j), high_scale = scale_pair(scales.y, j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = cuda::mul_bf16x2(code_pair(codes[0][j], i), low_scale);
      high[i] = cuda::mul_bf16x2(code_pair(codes[1][j], i), high_scale);
    }
  }
};

// The inputs of up to 8 * kTokenTiles tokens, as multiply_chunk() wants them. rows[n]: the 16-byte aligned row of this
// lane's token (tile n, token g); for a column that is no token any row will do: columns do not mix.
template <int kTokenTiles>
class Inputs {
 public:
  __device__ __forceinline__ Inputs(const cuda::Bf16Bits* const (&rows)[kTokenTiles], int k) : k_(k) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      from_[n] = reinterpret_cast<const std::byte*>(rows[n]) + threadIdx.x % 4 * 16;
      asm("" : "+l"(from_[n]));  // an address kept, not computed again for every load
    }
  }
  // Whether all inputs of a chunk exist.
  __device__ __forceinline__ bool whole(int chunk) const { return (chunk + 1) * static_cast<int>(kTileChunk) <= k_; }
  // Inputs 32 j + 8 t + 0..7 of a chunk. Past the end of a row the weights are zeros, and inputs must not be NaN.
  template <bool kWhole>
  __device__ __forceinline__ uint4 load(int n, int chunk, int j) const {
    const int first = chunk * static_cast<int>(kTileChunk) + 32 * j;
    if (!kWhole && first + 8 * static_cast<int>(threadIdx.x % 4) >= k_) return {0, 0, 0, 0};
    return cuda::load_global(from_[n] + int64_t{chunk} * (kTileChunk * 2) + 64 * j);
  }

 private:
  const std::byte* from_[kTokenTiles];
  int k_;
};

template <numeric::WeightFormat kFormat, int kTokenTiles, bool kWhole>
__device__ __forceinline__ void multiply_chunk(float (&acc)[kTokenTiles][4], const RawChunk<kFormat>& raw, int chunk,
                                               const Inputs<kTokenTiles>& x) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint4 values[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) values[n] = x.template load<kWhole>(n, chunk, j);
    uint32_t low[4], high[4];
    raw.operands(j, low, high);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      cuda::mma_bf16(acc[n], low[0], high[0], low[1], high[1], values[n].x, values[n].y);
      cuda::mma_bf16(acc[n], low[2], high[2], low[3], high[3], values[n].z, values[n].w);
    }
  }
}
// acc[n] += chunk `chunk` of a tile x token tile n.
template <numeric::WeightFormat kFormat, int kTokenTiles>
__device__ __forceinline__ void multiply_chunk(float (&acc)[kTokenTiles][4], const RawChunk<kFormat>& raw, int chunk,
                                               const Inputs<kTokenTiles>& x) {
  if (x.whole(chunk)) {
    multiply_chunk<kFormat, kTokenTiles, true>(acc, raw, chunk, x);
  } else {
    multiply_chunk<kFormat, kTokenTiles, false>(acc, raw, chunk, x);
  }
}

// Chunks first, first + step, ... of a tile that a warp loads together; those past the last are left out.
template <numeric::WeightFormat kFormat, int kAhead>
struct ChunkGroup {
  RawChunk<kFormat> raw[kAhead];
  __device__ __forceinline__ void load(const std::byte* tile, int chunks, int first, int step) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int chunk = first + a * step;
      if (chunk < chunks) {
        raw[a].template load<false>(tile + chunk * tile_chunk_bytes(kFormat), threadIdx.x % 32);
      }
    }
  }
};

// acc += tile x tokens over chunks first, first + step, ... of `chunks`; `group` holds the first of them. kAhead
// changes no bit.
template <numeric::WeightFormat kFormat, int kTokenTiles, int kAhead>
__device__ __forceinline__ void accumulate(float (&acc)[kTokenTiles][4], ChunkGroup<kFormat, kAhead>& group,
                                           const std::byte* tile, int chunks, int first, int step,
                                           const Inputs<kTokenTiles>& x) {
  for (int base = first; base < chunks; base += step * kAhead) {
    if (base != first) group.load(tile, chunks, base, step);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * step >= chunks) break;
      multiply_chunk<kFormat, kTokenTiles>(acc, group.raw[a], base + a * step, x);
    }
  }
}

// What kChains warps give with accumulate() and add_warps(), bit for bit, by one warp: chain c is chunks c, c +
// kChains,
// ...; the sums of 16 rows and 8 tokens stay where mma.sync leaves them. kAhead divides kChains.
template <numeric::WeightFormat kFormat, int kChains, int kAhead>
__device__ __forceinline__ void accumulate_alone(float (&sum)[4], const std::byte* tile, int chunks,
                                                 const Inputs<1>& x) {
  float acc[kChains][1][4] = {};
  ChunkGroup<kFormat, kAhead> now, next;
  now.load(tile, chunks, 0, 1);
#pragma unroll(kAhead == kChains ? 2 : 1)
  for (int base = 0; base < chunks; base += kChains) {
#pragma unroll
    for (int c = 0; c < kChains; c += kAhead) {
      next.load(tile, chunks, base + c + kAhead, 1);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (base + c + a < chunks) multiply_chunk<kFormat, 1>(acc[c + a], now.raw[a], base + c + a, x);
      }
      now = next;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] = acc[0][0][i];
#pragma unroll
    for (int c = 1; c < kChains; ++c) sum[i] += acc[c][0][i];
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
