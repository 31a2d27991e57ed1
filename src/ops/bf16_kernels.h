// The dot kernel of bf16 weights with bf16 activations (form kBf16) for AVX2: included by its kernel file, after
// dot16_kernels.h. Order of additions: dot_order.h; the products are exact.
//
// Both sides stay bf16 until a register of sixteen is used: shifted left by 16 it is the even lanes in fp32, blended
// with zeros the odd ones, one instruction each. Many tokens: a tile of rows and tokens goes through a chunk of columns
// twice, for the even lanes and for the odd ones, with all its sums in registers; a chunk of four rows and three tokens
// fits L1.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

enum class Lanes { kEven, kOdd };

template <Lanes kLanes>
inline __m256 lanes_of(__m256i pairs) {
  if constexpr (kLanes == Lanes::kEven) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  __m256i zero;
  asm volatile("vpxor %0, %0, %0" : "=x"(zero));  // made anew, which is free: sums and inputs fill the registers
  return _mm256_castsi256_ps(_mm256_blend_epi16(zero, pairs, 0xaa));
}

inline __m256i load_pairs(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// The last count < 16 weights of a row, then zeros.
inline __m256i load_tail(const std::byte* from, int64_t count) {
  alignas(32) std::byte padded[32] = {};
  std::memcpy(padded, from, static_cast<size_t>(2 * count));
  return load_pairs(padded);
}

inline Vec in_order(__m256 even, __m256 odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);  // 0-3 8-11, 4-7 12-15
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

// out[r * apart] for R rows of `k` columns, `apart` rows apart, with one token: bound by reading the rows. Rows that
// lie together are one stream, which is prefetched.
template <int R, bool kTogether>
inline void bf16_rows(const std::byte* rows, int64_t apart, int64_t k, const std::byte* x, float* out) {
  constexpr int64_t kAhead = 4096, kLine = 64;
  __m256 even[R] = {}, odd[R] = {};
  const auto add = [&](int r, __m256i weights, __m256i token) {
    even[r] = _mm256_fmadd_ps(lanes_of<Lanes::kEven>(weights), lanes_of<Lanes::kEven>(token), even[r]);
    odd[r] = _mm256_fmadd_ps(lanes_of<Lanes::kOdd>(weights), lanes_of<Lanes::kOdd>(token), odd[r]);
  };
  const int64_t stream_bytes = 2 * k * apart, steps = k / 16;
  int64_t step = 0;
  for (; step + 2 <= steps; step += 2) {
#pragma GCC unroll 4
    for (int r = 0; kTogether && r < R; ++r) __builtin_prefetch(rows + R * step * 32 + r * kLine + kAhead, 0, 2);
#pragma GCC unroll 2
    for (int64_t s = step; s < step + 2; ++s) {
      const __m256i token = load_pairs(x + s * 32);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) add(r, load_pairs(rows + r * stream_bytes + s * 32), token);
    }
  }
  for (; step * 16 < k; ++step) {
    const int64_t left = k - step * 16;
    for (int r = 0; r < R; ++r) {
      const std::byte* from = rows + r * stream_bytes + step * 32;
      add(r, left < 16 ? load_tail(from, left) : load_pairs(from), load_pairs(x + step * 32));
    }
  }
  float folded[R];
  fold_sums<R>([&](int r) { return in_order(even[r], odd[r]); }, folded);
  for (int r = 0; r < R; ++r) out[r * apart] = folded[r];
}

// One token. Long rows come from memory: four streams far from each other keep more of it busy than one, or than four
// rows that lie together, because a thread's prefetchers follow each. Short ones are a small model's, and in the cache.
inline void bf16_one(const DotRows& task, const std::byte* x, float* out) {
  constexpr int64_t kShortColumns = 1024;
  const auto at = [&](int64_t row) { return task.data + 2 * row * task.k; };
  const int64_t quarter = task.rows / 4;
  for (int64_t i = 0; i < quarter; ++i) {
    if (task.k <= kShortColumns) {
      bf16_rows<4, true>(at(4 * i), 1, task.k, x, out + 4 * i);
    } else {
      bf16_rows<4, false>(at(i), quarter, task.k, x, out + i);
    }
  }
  for (int64_t row = 4 * quarter; row < task.rows; ++row) bf16_rows<1, true>(at(row), 1, task.k, x, out + row);
}

constexpr int64_t kChunk = 1024;      // columns of a tile
constexpr int64_t kChunkTokens = 32;  // whose whole rows stay in L2
constexpr int kChunkRows = 4;

// Sums between chunks.
using ChunkSums = __m256[kChunkTokens][kChunkRows][2];

// Columns of R rows and of some tokens: whole steps of sixteen, and `tail` more.
struct Chunk {
  const std::byte* rows;
  int64_t row_bytes;
  int64_t steps;
  int64_t tail;
  bool starts, ends;
};

template <Lanes kLanes, int R, int T>
inline void bf16_pass(const Chunk& chunk, const std::byte* const (&x)[T], __m256 (*kept)[kChunkRows][2]) {
  constexpr int kHalf = static_cast<int>(kLanes);
  __m256 sums[T][R];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sums[t][r] = chunk.starts ? __m256{} : kept[t][r][kHalf];
  }
  const auto add = [&](int64_t step, const auto& weights) {
    __m256 token[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) token[t] = lanes_of<kLanes>(load_pairs(x[t] + step * 32));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 row = lanes_of<kLanes>(weights(r));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sums[t][r] = _mm256_fmadd_ps(row, token[t], sums[t][r]);
    }
  };
  for (int64_t step = 0; step < chunk.steps; ++step) {
    add(step, [&](int r) { return load_pairs(chunk.rows + r * chunk.row_bytes + step * 32); });
  }
  if (chunk.tail > 0) {
    add(chunk.steps, [&](int r) { return load_tail(chunk.rows + r * chunk.row_bytes + chunk.steps * 32, chunk.tail); });
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) kept[t][r][kHalf] = sums[t][r];
  }
}

template <int R>
void bf16_chunk(const Chunk& chunk, const std::byte* const* x, int64_t first, int64_t tokens, ChunkSums& kept,
                float* out, int64_t stride) {
  const auto tile = [&]<int T>(int64_t t) {
    const std::byte* columns[T];
    for (int i = 0; i < T; ++i) columns[i] = x[t + i] + 2 * first;
    bf16_pass<Lanes::kEven, R, T>(chunk, columns, kept + t);
    bf16_pass<Lanes::kOdd, R, T>(chunk, columns, kept + t);
    for (int i = 0; chunk.ends && i < T; ++i) {
      fold_sums<R>([&](int r) { return in_order(kept[t + i][r][0], kept[t + i][r][1]); }, out + (t + i) * stride);
    }
    return t + T;
  };
  int64_t t = 0;
  while (t + 3 <= tokens && tokens - t != 4) t = tile.template operator()<3>(t);
  while (t + 2 <= tokens) t = tile.template operator()<2>(t);
  if (t < tokens) tile.template operator()<1>(t);
}

template <int R>
void bf16_panel(const DotRows& task, int64_t row, const std::byte* const* x, int64_t tokens, float* out,
                int64_t stride) {
  alignas(64) ChunkSums kept;
  for (int64_t first = 0; first < task.k; first += kChunk) {
    const int64_t columns = task.k - first < kChunk ? task.k - first : kChunk;
    const Chunk chunk{task.data + 2 * (row * task.k + first),
                      2 * task.k,
                      columns / 16,
                      columns % 16,
                      first == 0,
                      first + kChunk >= task.k};
    bf16_chunk<R>(chunk, x, first, tokens, kept, out, stride);
  }
}

void bf16_dot(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  if (tokens.count == 1) return bf16_one(task, tokens.x[0], out);
  int64_t row = 0;
  for (int64_t t = 0; t < tokens.count; t += kChunkTokens) {
    const int64_t count = tokens.count - t < kChunkTokens ? tokens.count - t : kChunkTokens;
    float* to = out + t * stride;
    for (row = 0; row + kChunkRows <= task.rows; row += kChunkRows) {
      bf16_panel<kChunkRows>(task, row, tokens.x + t, count, to + row, stride);
    }
    for (; row < task.rows; ++row) bf16_panel<1>(task, row, tokens.x + t, count, to + row, stride);
  }
}

}  // namespace
}  // namespace assay::ops
