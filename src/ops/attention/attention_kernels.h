// The fused attention block for any instruction set: included by one kernel file each, after a simd_<set>.h of
// backend/cpu and, in namespace assay::ops, kRowTile, kKeyTile and struct Lanes:
//   Lanes::load_f32(const float*)                sixteen elements of a key or value, in the order of query and output
//   Lanes::load_bf16(const void*)                the same
//   Lanes::fold_tile<R, J>(sum, out, stride)     out[r * stride + j] = the lanes of sum[r][j], folded by halves
// kRowTile: query rows of a register tile. kKeyTile: keys of one.
//
// Keys and values are passed over in steps of four positions, for all rows of a group at once, so that they stream: the
// first group asks for what the stream holds 2 KiB ahead, for values after the last key and for the next block's keys
// after the last value. From DRAM that is 11 instead of 6 GB/s a thread (EPYC; 16 GB/s is all that it can read).
#pragma once

#include "ops/attention/attention_block.h"

namespace assay::ops {
namespace {

constexpr int32_t kStep = 4;           // positions
constexpr int32_t kGroupRows = 8;      // rows that share a pass over the block: their queries fit in L1
constexpr int32_t kAheadBytes = 2048;  // of the stream

struct Bf16Elements {
  static constexpr int32_t kBytes = 2;
  static cpu::Vec load(const void* data, int32_t index) {
    return Lanes::load_bf16(static_cast<const char*>(data) + 2 * index);
  }
};
struct F32Elements {
  static constexpr int32_t kBytes = 4;
  static cpu::Vec load(const void* data, int32_t index) {
    return Lanes::load_f32(static_cast<const float*>(data) + index);
  }
};

// Asks for N elements of the stream at `ahead`, spread over the arithmetic: a burst of prefetches keeps loads waiting.
template <int N, class E>
inline void prefetch(const char* ahead, int32_t element) {
  for (int32_t byte = 0; byte < N * E::kBytes; byte += 64) {
    __builtin_prefetch(ahead + int64_t{element} * E::kBytes + byte, 0, 3);
  }
}

// weight[r][j] = dot(query[r], keys[j]) for R rows and J keys at once.
template <int R, int J, class E, bool kAhead>
inline void scores(const float* query, const void* const* keys, int32_t dim, float* weight, const char* ahead) {
  cpu::Vec sum[R][J];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) sum[r][j] = cpu::zero();
  }
  for (int32_t d = 0; d < dim; d += 16) {
    if constexpr (kAhead) prefetch<16 * J, E>(ahead, d * J);
    cpu::Vec value[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) value[r] = cpu::load(query + r * dim + d);
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const cpu::Vec key = E::load(keys[j], d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][j] = cpu::fused(value[r], key, sum[r][j]);
    }
  }
  Lanes::fold_tile<R, J>(sum, weight, kAttentionBlock);
}

// output[r] += weight[r][j] * values[j], j rising, for R rows and J values at once.
template <int R, int J, class E, bool kAhead>
inline void add_values(const float* weight, const void* const* values, int32_t dim, float* output, const char* ahead) {
  cpu::Vec factor[R][J];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) factor[r][j] = cpu::broadcast(weight[r * kAttentionBlock + j]);
  }
  for (int32_t d = 0; d < dim; d += 16) {
    if constexpr (kAhead) prefetch<16 * J, E>(ahead, d * J);
    cpu::Vec sum[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] = cpu::load(output + r * dim + d);
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const cpu::Vec value = E::load(values[j], d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = cpu::fused(factor[r][j], value, sum[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) cpu::store(output + r * dim + d, sum[r]);
  }
}

// Rows [first, last) of the scratch against positions [j, j + J) of the block; the first tile reads `ahead`.
template <int J, class E>
inline void step_scores(const AttentionScratch& scratch, int32_t first, int32_t last, const AttentionBlock& block,
                        int32_t j, int32_t dim, const char* ahead) {
  const auto tile = [&]<int R, int N, bool kAhead>(int32_t row) {
    const float* query = scratch.query + int64_t{row} * dim;
    float* weight = scratch.weight + int64_t{row} * kAttentionBlock + j;
    for (int32_t key = 0; key < J; key += N) {
      const char* part = kAhead ? ahead + int64_t{key} * dim * E::kBytes : nullptr;
      scores<R, N, E, kAhead>(query, block.keys + j + key, dim, weight + key, part);
    }
  };
  const auto tiles = [&]<int R, int N>() {
    if (ahead != nullptr && first + R <= last) {
      tile.template operator()<R, N, true>(first);
      ahead = nullptr;
      first += R;
    }
    for (; first + R <= last; first += R) tile.template operator()<R, N, false>(first);
  };
  constexpr int kKeys = J < kKeyTile ? J : kKeyTile;
  tiles.template operator()<kRowTile, kKeys>();
  if constexpr (kRowTile > 2) tiles.template operator()<2, kKeys>();
  tiles.template operator()<1, J>();
}

template <int J, class E>
inline void step_values(const AttentionScratch& scratch, int32_t first, int32_t last, const AttentionBlock& block,
                        int32_t j, int32_t dim, const char* ahead) {
  const auto tile = [&]<int R, bool kAhead>(int32_t row) {
    const float* weight = scratch.weight + int64_t{row} * kAttentionBlock + j;
    add_values<R, J, E, kAhead>(weight, block.values + j, dim, scratch.output + int64_t{row} * dim, ahead);
  };
  const auto tiles = [&]<int R>() {
    if (ahead != nullptr && first + R <= last) {
      tile.template operator()<R, true>(first);
      ahead = nullptr;
      first += R;
    }
    for (; first + R <= last; first += R) tile.template operator()<R, false>(first);
  };
  tiles.template operator()<kRowTile>();
  if constexpr (kRowTile > 2) tiles.template operator()<2>();
  tiles.template operator()<1>();
}

// Scores to weights for one row; unused positions of the block count as exp(-inf) = 0.
inline void softmax_step(const AttentionScratch& scratch, int32_t row, int32_t count, float scale, int32_t dim) {
  float* weight = scratch.weight + int64_t{row} * kAttentionBlock;
  for (int32_t j = count; j < kAttentionBlock; ++j) weight[j] = -__builtin_inff();
  const float old = scratch.largest[row];
  cpu::Vec score[kAttentionBlock / 16];
  cpu::Vec most = cpu::broadcast(old);
  for (int i = 0; i < kAttentionBlock / 16; ++i) {
    score[i] = cpu::mul(cpu::load(weight + 16 * i), cpu::broadcast(scale));
    most = cpu::larger(score[i], most);
  }
  const float largest = cpu::largest(most);
  cpu::Vec sum = cpu::zero();
  for (int i = 0; i < kAttentionBlock / 16; ++i) {
    const cpu::Vec value = cpu::exponential(cpu::sub(score[i], cpu::broadcast(largest)));
    cpu::store(weight + 16 * i, value);
    sum = cpu::add(sum, value);
  }
  scratch.largest[row] = largest;
  float total = cpu::fold(sum);
  if (largest == old) {  // nothing shrinks
    scratch.total[row] += total;
    return;
  }
  const cpu::Vec shrink = cpu::exponential(cpu::broadcast(old - largest));
  float lanes[16];
  cpu::store(lanes, shrink);
  scratch.total[row] = scratch.total[row] * lanes[0] + total;
  float* output = scratch.output + int64_t{row} * dim;
  for (int32_t d = 0; d < dim; d += 16) cpu::store(output + d, cpu::mul(cpu::load(output + d), shrink));
}

// Where position `index` of a block's stream is: keys, then values, then the next block's keys.
template <class E>
inline const char* streamed(const AttentionBlock& block, int32_t index, int32_t dim) {
  if (index < block.count) return static_cast<const char*>(block.keys[index]);
  index -= block.count;
  if (index < block.count) return static_cast<const char*>(block.values[index]);
  if (block.next == nullptr) return nullptr;
  return static_cast<const char*>(block.next) + int64_t{index - block.count} * dim * E::kBytes;
}

template <class E>
inline void block_of(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  const int32_t dim = rows.head_dim, count = block.count;
  const int32_t ahead = kAheadBytes / (dim * E::kBytes) + kStep;
  // One pass over the positions for a group of rows; the first pass reads ahead of itself.
  const auto passes = [&](int32_t start, const auto& step, const auto& single) {
    for (int32_t first = rows.first; first < rows.last; first += kGroupRows) {
      const int32_t last = first + kGroupRows < rows.last ? first + kGroupRows : rows.last;
      int32_t j = 0;
      for (; j + kStep <= count; j += kStep) {
        step(first, last, j, first == rows.first ? streamed<E>(block, start + j + ahead, dim) : nullptr);
      }
      for (; j < count; ++j) single(first, last, j);
    }
  };
  passes(
      0,
      [&](int32_t first, int32_t last, int32_t j, const char* next) {
        step_scores<kStep, E>(scratch, first, last, block, j, dim, next);
      },
      [&](int32_t first, int32_t last, int32_t j) { step_scores<1, E>(scratch, first, last, block, j, dim, nullptr); });
  for (int32_t row = rows.first; row < rows.last; ++row) softmax_step(scratch, row, count, rows.scale, dim);
  passes(
      count,
      [&](int32_t first, int32_t last, int32_t j, const char* next) {
        step_values<kStep, E>(scratch, first, last, block, j, dim, next);
      },
      [&](int32_t first, int32_t last, int32_t j) { step_values<1, E>(scratch, first, last, block, j, dim, nullptr); });
}

inline void attention_block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  block.bf16 ? block_of<Bf16Elements>(scratch, rows, block) : block_of<F32Elements>(scratch, rows, block);
}

}  // namespace
}  // namespace assay::ops
