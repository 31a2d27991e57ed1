// The fused attention block for any instruction set: included by one kernel file each, after a simd_<set>.h of
// backend/cpu and, in an anonymous namespace, kRowTile and kWideTile: rows of a register tile, and keys or value
// registers of it (kWideTile 4 for one or two rows).
#pragma once

#include "ops/attention/attention_block.h"

namespace assay::ops {
namespace {

struct Bf16Elements {
  static constexpr int32_t kBytes = 2;
  static cpu::Vec load(const void* data, int32_t index) {
    return cpu::load_bf16(static_cast<const char*>(data) + 2 * index);
  }
};
struct F32Elements {
  static constexpr int32_t kBytes = 4;
  static cpu::Vec load(const void* data, int32_t index) { return cpu::load(static_cast<const float*>(data) + index); }
};

// weight[r][j] = dot(query[r], keys[j]) for R rows and J keys at once.
template <int R, int J, class E>
inline void scores(const float* query, const void* const* keys, int32_t dim, float* weight) {
  cpu::Vec sum[R][J];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) sum[r][j] = cpu::zero();
  }
  for (int32_t d = 0; d < dim; d += 16) {
    cpu::Vec key[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) key[j] = E::load(keys[j], d);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const cpu::Vec value = cpu::load(query + r * dim + d);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) sum[r][j] = cpu::fused(value, key[j], sum[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) cpu::fold_rows<J>([&](int j) { return sum[r][j]; }, weight + r * kAttentionBlock);
}

template <int R, int J, class E>
inline void all_scores(const float* query, const AttentionBlock& block, int32_t dim, float* weight) {
  int32_t j = 0;
  for (; j + J <= block.count; j += J) scores<R, J, E>(query, block.keys + j, dim, weight + j);
  for (; j < block.count; ++j) scores<R, 1, E>(query, block.keys + j, dim, weight + j);
}

// output[r][d .. d + 16 N) += weight[r][j] * values[j][d ..), j rising, for R rows at once.
template <int R, int N, class E>
inline void add_values(const float* weight, const AttentionBlock& block, int32_t d, int32_t dim, float* output) {
  cpu::Vec sum[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = cpu::load(output + r * dim + d + 16 * n);
  }
  for (int32_t j = 0; j < block.count; ++j) {
    cpu::Vec value[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) value[n] = E::load(block.values[j], d + 16 * n);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const cpu::Vec factor = cpu::broadcast(weight[r * kAttentionBlock + j]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = cpu::fused(factor, value[n], sum[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) cpu::store(output + r * dim + d + 16 * n, sum[r][n]);
  }
}

template <int R, int N, class E>
inline void add_all_values(const float* weight, const AttentionBlock& block, int32_t dim, float* output) {
  int32_t d = 0;
  for (; d + 16 * N <= dim; d += 16 * N) add_values<R, N, E>(weight, block, d, dim, output);
  for (; d < dim; d += 16) add_values<R, 1, E>(weight, block, d, dim, output);
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

// Values are read in strips of all positions, which hardware prefetchers do not follow.
template <class E>
inline void prefetch_values(const AttentionBlock& block, int32_t dim) {
  for (int32_t j = 0; j < block.count; ++j) {
    const char* value = static_cast<const char*>(block.values[j]);
    for (int32_t byte = 0; byte < dim * E::kBytes; byte += 64) __builtin_prefetch(value + byte, 0, 2);
  }
}

template <class E>
inline void block_of(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  const int32_t dim = rows.head_dim;
  const auto query = [&](int32_t row) { return scratch.query + int64_t{row} * dim; };
  const auto output = [&](int32_t row) { return scratch.output + int64_t{row} * dim; };
  const auto weight = [&](int32_t row) { return scratch.weight + int64_t{row} * kAttentionBlock; };
  prefetch_values<E>(block, dim);
  int32_t row = rows.first;
  for (; row + kRowTile <= rows.last; row += kRowTile) {
    all_scores<kRowTile, kWideTile, E>(query(row), block, dim, weight(row));
  }
  for (; row + 2 <= rows.last; row += 2) all_scores<2, kWideTile, E>(query(row), block, dim, weight(row));
  for (; row < rows.last; ++row) all_scores<1, 4, E>(query(row), block, dim, weight(row));
  for (row = rows.first; row < rows.last; ++row) softmax_step(scratch, row, block.count, rows.scale, dim);
  row = rows.first;
  for (; row + kRowTile <= rows.last; row += kRowTile) {
    add_all_values<kRowTile, kWideTile, E>(weight(row), block, dim, output(row));
  }
  for (; row + 2 <= rows.last; row += 2) add_all_values<2, kWideTile, E>(weight(row), block, dim, output(row));
  for (; row < rows.last; ++row) add_all_values<1, 4, E>(weight(row), block, dim, output(row));
}

inline void attention_block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  block.bf16 ? block_of<Bf16Elements>(scratch, rows, block) : block_of<F32Elements>(scratch, rows, block);
}

}  // namespace
}  // namespace assay::ops
