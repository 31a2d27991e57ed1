// Dot products by vdpbf16ps: sixteen fp32 lanes, each takes two neighbouring bf16 products an instruction. Subnormal
// inputs and results count as zero, as the instruction defines.
//
// bf16 weights ("pairs" order): lane l adds the products of k = 2l, 2l + 1 of every 32; weights are used where they lie
// for few tokens, from an aligned panel of kChunk columns for many.
//
// nvfp4 ("octets" order): 64 bytes of codes are 128 weights. In them lane l is one octet, k = 8l .. 8l + 7; four vpermw
// on the word shifted by 0, 4, 8, 12 bits decode them to bf16 planes, whose dot with the planes of x is exact but for
// its own additions; one fused multiplication by the octet's block scale adds it to the lane.
#include <cstring>

#include "backend/cpu/simd_avx512.h"
#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int kRowTile = 4;
constexpr int kTokenTile = 4;
constexpr int64_t kChunk = 1024;  // columns of a panel
constexpr int64_t kPlanes = 128;  // columns of one step of nvfp4

inline __m512bh load_pairs(const void* from) {
  const __m512i bits = _mm512_loadu_si512(from);
  __m512bh value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline __m512bh as_bf16(__m512i bits) {
  __m512bh value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Steps of a tile, and whether they are the first or the last of k: between parts its sums are kept in memory (`kept`,
// null where a tile is never cut).
struct Part {
  int64_t steps;
  bool starts, ends;
};

template <int R, int T>
inline void begin(const Part& part, const float* kept, __m512 (&sum)[R][T]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[r][t] =
          kept == nullptr || part.starts ? _mm512_setzero_ps() : _mm512_load_ps(kept + (t * kDotRowBlock + r) * 16);
    }
  }
}

template <int R, int T>
inline void end(const Part& part, const __m512 (&sum)[R][T], float* kept, float* out, int64_t stride) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    if (kept == nullptr || part.ends) {
      cpu::fold_rows<R>([&](int r) { return sum[r][t]; }, out + t * stride);
      continue;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) _mm512_store_ps(kept + (t * kDotRowBlock + r) * 16, sum[r][t]);
  }
}

// bf16 weights of R rows, `row_bytes` apart, with T tokens.
template <int R, int T, bool kPrefetch>
inline void pairs_tile(const Part& part, const std::byte* weights, int64_t row_bytes, int64_t tail,
                       const std::byte* const* x, int64_t first, float* kept, float* out, int64_t stride) {
  __m512 sum[R][T];
  begin<R, T>(part, kept, sum);
  for (int64_t step = 0; step < part.steps; ++step) {
    __m512bh weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::byte* from = weights + r * row_bytes + step * 64;
      weight[r] = load_pairs(from);
      if constexpr (kPrefetch) __builtin_prefetch(from + R * row_bytes, 0, 2);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512bh token = load_pairs(x[t] + first * 2 + step * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][t] = _mm512_dpbf16_ps(sum[r][t], weight[r], token);
    }
  }
  if (tail > 0) {
    const __mmask32 mask = (__mmask32{1} << tail) - 1;
    for (int r = 0; r < R; ++r) {
      const __m512bh weight = as_bf16(_mm512_maskz_loadu_epi16(mask, weights + r * row_bytes + part.steps * 64));
      for (int t = 0; t < T; ++t) {
        sum[r][t] = _mm512_dpbf16_ps(sum[r][t], weight, load_pairs(x[t] + first * 2 + part.steps * 64));
      }
    }
  }
  end<R, T>(part, sum, kept, out, stride);
}

template <int R>
inline void pairs_inline_rows(const DotRows& task, int64_t row, const DotTokens& tokens, float* out, int64_t stride) {
  const Part part{task.k / 32, true, true};
  const int64_t row_bytes = task.k * 2, tail = task.k % 32;
  const std::byte* weights = task.data + row * row_bytes;
  const auto tile = [&]<int T, bool kPrefetch>(int64_t t) {
    pairs_tile<R, T, kPrefetch>(part, weights, row_bytes, tail, tokens.x + t, 0, nullptr, out + t * stride + row,
                                stride);
  };
  int64_t t = 0;
  for (; t + 4 <= tokens.count; t += 4)
    t == 0 ? tile.template operator()<4, true>(t) : tile.template operator()<4, false>(t);
  switch (tokens.count - t) {
    case 1:
      return t == 0 ? tile.template operator()<1, true>(t) : tile.template operator()<1, false>(t);
    case 2:
      return t == 0 ? tile.template operator()<2, true>(t) : tile.template operator()<2, false>(t);
    case 3:
      return t == 0 ? tile.template operator()<3, true>(t) : tile.template operator()<3, false>(t);
    default:
      return;
  }
}

void pairs_inline(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  int64_t row = 0;
  for (; row + kRowTile <= task.rows; row += kRowTile) pairs_inline_rows<kRowTile>(task, row, tokens, out, stride);
  for (; row < task.rows; ++row) pairs_inline_rows<1>(task, row, tokens, out, stride);
}

template <int T>
void pairs_panel_tokens(const Part& part, const std::byte* panel, int64_t rows, const std::byte* const* x,
                        int64_t first, float* kept, float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + kRowTile <= rows; r += kRowTile) {
    pairs_tile<kRowTile, T, false>(part, panel + r * kChunk * 2, kChunk * 2, 0, x, first, kept + r * 16, out + r,
                                   stride);
  }
  for (; r < rows; ++r) {
    pairs_tile<1, T, false>(part, panel + r * kChunk * 2, kChunk * 2, 0, x, first, kept + r * 16, out + r, stride);
  }
}

void pairs_panel(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  alignas(64) std::byte panel[kDotRowBlock * kChunk * 2];
  alignas(64) float kept[kDotTokens * kDotRowBlock * 16];
  for (int64_t row = 0; row < task.rows; row += kDotRowBlock) {
    const int64_t rows = task.rows - row < kDotRowBlock ? task.rows - row : kDotRowBlock;
    for (int64_t first = 0; first < task.k; first += kChunk) {
      const int64_t columns = task.k - first < kChunk ? task.k - first : kChunk;
      const Part part{(columns + 31) / 32, first == 0, first + kChunk >= task.k};
      for (int64_t r = 0; r < rows; ++r) {
        std::byte* to = panel + r * kChunk * 2;
        std::memcpy(to, task.data + ((row + r) * task.k + first) * 2, static_cast<size_t>(columns) * 2);
        std::memset(to + columns * 2, 0, static_cast<size_t>(part.steps * 32 - columns) * 2);
      }
      int64_t t = 0;
      for (; t + kTokenTile <= tokens.count; t += kTokenTile) {
        pairs_panel_tokens<kTokenTile>(part, panel, rows, tokens.x + t, first, kept + t * kDotRowBlock * 16,
                                       out + t * stride + row, stride);
      }
      for (; t < tokens.count; ++t) {
        pairs_panel_tokens<1>(part, panel, rows, tokens.x + t, first, kept + t * kDotRowBlock * 16,
                              out + t * stride + row, stride);
      }
    }
  }
}

// Sixteen codes as bf16, twice: vpermw looks at five bits.
inline __m512i code_table() {
  const __m256i codes = _mm256_setr_epi16(
      0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<short>(0x8000),
      static_cast<short>(0xbf00), static_cast<short>(0xbf80), static_cast<short>(0xbfc0), static_cast<short>(0xc000),
      static_cast<short>(0xc040), static_cast<short>(0xc080), static_cast<short>(0xc0c0));
  return _mm512_broadcast_i64x4(codes);
}

// E4M3 scales of eight blocks, each twice: the bits in place are scale * 2^-120, also of subnormals. Signs and NaNs,
// which weights should not have, take a way of their own.
inline __m512 scale_lanes(uint64_t blocks) {
  constexpr uint64_t kOnes = 0x0101010101010101, kMagnitudes = 0x7f * kOnes, kSigns = 0x80 * kOnes;
  const __m128i eight = _mm_cvtsi64_si128(static_cast<long long>(blocks));
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(eight, eight));
  const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(codes, 20)), _mm512_set1_ps(0x1p120f));
  if ((((blocks & kMagnitudes) + kOnes) | blocks) & kSigns) [[unlikely]] {
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(codes, 7), 31);
    const __m512i bits = _mm512_or_si512(_mm512_slli_epi32(magnitude, 20), sign);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    return _mm512_mask_blend_ps(nan, _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f)),
                                _mm512_set1_ps(__builtin_nanf("")));
  }
  return value;
}

// sum[r][t] += one step of 128 columns; `planes` of x at x[t] + at.
template <int R, int T>
inline void add_octets(const __m512i (&plane)[R][4], const __m512 (&scale)[R], const std::byte* const* x, int64_t at,
                       __m512 (&sum)[R][T]) {
  __m512 dot[R][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) dot[r][t] = _mm512_setzero_ps();
  }
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512bh token = load_pairs(x[t] + at + p * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) dot[r][t] = _mm512_dpbf16_ps(dot[r][t], as_bf16(plane[r][p]), token);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r][t] = _mm512_fmadd_ps(dot[r][t], scale[r], sum[r][t]);
  }
}

inline void decode(__m512i words, __m512i table, __m512i (&plane)[4]) {
  plane[0] = _mm512_permutexvar_epi16(words, table);
  plane[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
  plane[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
  plane[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
}

inline __m512i step_codes(const std::byte* from, int64_t columns) {
  if (columns >= kPlanes) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi8((__mmask64{1} << (columns / 2)) - 1, from);
}
inline uint64_t step_scales(const std::byte* from, int64_t columns) {
  uint64_t blocks = 0;
  if (columns >= kPlanes) {
    std::memcpy(&blocks, from, 8);
  } else {
    std::memcpy(&blocks, from, static_cast<size_t>(columns / 16));
  }
  return blocks;
}

template <int R, int T>
inline void octets_tile(const DotRows& task, int64_t row, const std::byte* const* x, float* out, int64_t stride) {
  const int64_t row_bytes = task.k / 2, row_scales = task.k / 16;
  const __m512i table = code_table();
  __m512 sum[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < task.k; k += kPlanes) {
    __m512i plane[R][4];
    __m512 scale[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const std::byte* from = task.data + (row + r) * row_bytes + k / 2;
      decode(step_codes(from, task.k - k), table, plane[r]);
      scale[r] = scale_lanes(step_scales(task.scales + (row + r) * row_scales + k / 16, task.k - k));
      __builtin_prefetch(from + R * row_bytes, 0, 2);
    }
    add_octets<R, T>(plane, scale, x, k * 2, sum);
  }
  const Part part{0, true, true};
  end<R, T>(part, sum, nullptr, out + row, stride);
}

template <int R, int T>
inline void octets_rows(const DotRows& task, const std::byte* const* x, float* out, int64_t stride) {
  int64_t row = 0;
  for (; row + R <= task.rows; row += R) octets_tile<R, T>(task, row, x, out, stride);
  for (; row < task.rows; ++row) octets_tile<1, T>(task, row, x, out, stride);
}

// Codes are decoded again for every four tokens, from L1 or L2.
void octets_inline(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  int64_t t = 0;
  for (; t + 4 <= tokens.count; t += 4) octets_rows<2, 4>(task, tokens.x + t, out + t * stride, stride);
  switch (tokens.count - t) {
    case 1:
      return octets_rows<4, 1>(task, tokens.x + t, out + t * stride, stride);
    case 2:
      return octets_rows<2, 2>(task, tokens.x + t, out + t * stride, stride);
    case 3:
      return octets_rows<2, 3>(task, tokens.x + t, out + t * stride, stride);
    default:
      return;
  }
}

// A decoded block of rows: planes and scale lanes of kChunk columns.
struct OctetPanel {
  alignas(64) __m512i plane[kDotRowBlock][kChunk / kPlanes][4];
  alignas(64) __m512 scale[kDotRowBlock][kChunk / kPlanes];
};

template <int R, int T>
inline void octets_panel_tile(const Part& part, const OctetPanel& panel, int64_t row, const std::byte* const* x,
                              int64_t first, float* kept, float* out, int64_t stride) {
  __m512 sum[R][T];
  begin<R, T>(part, kept, sum);
  for (int64_t step = 0; step < part.steps; ++step) {
    __m512 dot[R][T];
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      __m512bh weight[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) weight[r] = as_bf16(panel.plane[row + r][step][p]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512bh token = load_pairs(x[t] + first * 2 + (step * 4 + p) * 64);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          dot[r][t] = _mm512_dpbf16_ps(p == 0 ? _mm512_setzero_ps() : dot[r][t], weight[r], token);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 scale = panel.scale[row + r][step];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[r][t] = _mm512_fmadd_ps(dot[r][t], scale, sum[r][t]);
    }
  }
  end<R, T>(part, sum, kept, out, stride);
}

template <int T>
void octets_panel_tokens(const Part& part, const OctetPanel& panel, int64_t rows, const std::byte* const* x,
                         int64_t first, float* kept, float* out, int64_t stride) {
  constexpr int kRows = 2;  // two sums a product: half the rows
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    octets_panel_tile<kRows, T>(part, panel, r, x, first, kept + r * 16, out + r, stride);
  }
  for (; r < rows; ++r) octets_panel_tile<1, T>(part, panel, r, x, first, kept + r * 16, out + r, stride);
}

void octets_panel(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  OctetPanel panel;
  alignas(64) float kept[kDotTokens * kDotRowBlock * 16];
  const __m512i table = code_table();
  for (int64_t row = 0; row < task.rows; row += kDotRowBlock) {
    const int64_t rows = task.rows - row < kDotRowBlock ? task.rows - row : kDotRowBlock;
    for (int64_t first = 0; first < task.k; first += kChunk) {
      const int64_t columns = task.k - first < kChunk ? task.k - first : kChunk;
      const Part part{(columns + kPlanes - 1) / kPlanes, first == 0, first + kChunk >= task.k};
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t step = 0; step < part.steps; ++step) {
          const int64_t k = first + step * kPlanes;
          const std::byte* codes = task.data + ((row + r) * task.k + k) / 2;
          decode(step_codes(codes, task.k - k), table, panel.plane[r][step]);
          panel.scale[r][step] = scale_lanes(step_scales(task.scales + ((row + r) * task.k + k) / 16, task.k - k));
        }
      }
      int64_t t = 0;
      for (; t + kTokenTile <= tokens.count; t += kTokenTile) {
        octets_panel_tokens<kTokenTile>(part, panel, rows, tokens.x + t, first, kept + t * kDotRowBlock * 16,
                                        out + t * stride + row, stride);
      }
      for (; t < tokens.count; ++t) {
        octets_panel_tokens<1>(part, panel, rows, tokens.x + t, first, kept + t * kDotRowBlock * 16,
                               out + t * stride + row, stride);
      }
    }
  }
}

}  // namespace

// Few tokens: weights are used where they lie, row tile after row tile, while x stays in L1 or L2.
void dot_avx512_bf16(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  if (rows.format == DotFormat::kBf16) {
    constexpr int64_t kNearBytes = 256 * 1024;
    const bool near = tokens.count * rows.k * 2 <= kNearBytes;
    near ? pairs_inline(rows, tokens, out, stride) : pairs_panel(rows, tokens, out, stride);
  } else {
    tokens.count <= 8 ? octets_inline(rows, tokens, out, stride) : octets_panel(rows, tokens, out, stride);
  }
}

// Word w of plane p is element 4w + p of 128: from two registers at a time, sixteen words of a plane each.
void planes_avx512_bf16(const uint16_t* x, int64_t k, uint16_t* out) {
  alignas(64) uint16_t index[4][32];
  for (int p = 0; p < 4; ++p) {
    for (int w = 0; w < 32; ++w) index[p][w] = static_cast<uint16_t>(4 * (w % 16) + p);
  }
  for (int64_t first = 0; first < k; first += kPlanes) {
    __m512i part[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t left = k - first - 32 * i;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
      part[i] = _mm512_maskz_loadu_epi16(mask, x + first + 32 * i);
    }
    for (int p = 0; p < 4; ++p) {
      const __m512i order = _mm512_load_si512(index[p]);
      const __m512i low = _mm512_permutex2var_epi16(part[0], order, part[1]);
      const __m512i high = _mm512_permutex2var_epi16(part[2], order, part[3]);
      _mm512_storeu_si512(out + first + 32 * p, _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
    }
  }
}

}  // namespace assay::ops
