// attention in plain C++; attention_cpu_tiles.h says how work is cut. A score is summed in the lane order of
// backend/cpu/lanes.h; a block's weights too; then sums and outputs are scaled by exp(old max - new max) and the
// block's values are added position by position.
#include "backend/cpu/lanes.h"
#include "ops/attention/attention_cpu_tiles.h"

namespace assay::ops {
namespace {

using cpu::F4;

template <class C>
struct Block {
  const C* keys[kAttentionBlock];
  const C* values[kAttentionBlock];
};

// weight[r][j] = dot(query[r], keys[j]) for R rows and J keys at once.
template <int R, int J, class C>
void dot(const float* query, const C* const* keys, int32_t dim, float* weight) {
  cpu::F8 sum[R][J] = {};
  for (int32_t d = 0; d < dim; d += 8) {
    cpu::F8 key[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) key[j] = cpu::load8(keys[j] + d);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const cpu::F8 value = cpu::load8(query + r * dim + d);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        sum[r][j].low += value.low * key[j].low;
        sum[r][j].high += value.high * key[j].high;
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < J; ++j) weight[r * kAttentionBlock + j] = cpu::add_lanes(sum[r][j]);
  }
}

template <int R, int J, class C>
void dot_all(const float* query, const Block<C>& block, int32_t count, int32_t dim, float* weight) {
  int32_t j = 0;
  for (; j + J <= count; j += J) dot<R, J>(query, block.keys + j, dim, weight + j);
  for (; j < count; ++j) dot<R, 1>(query, block.keys + j, dim, weight + j);
}

// output[r][d .. d + 8 * E) += sum_j weight[r][j] * values[j][d ..), j rising, for R rows at once.
template <int R, int E, class C>
void add_values(const float* weight, const Block<C>& block, int32_t count, int32_t d, int32_t dim, float* output) {
  cpu::F8 sum[R][E];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int e = 0; e < E; ++e) sum[r][e] = cpu::load8(output + r * dim + d + 8 * e);
  }
  for (int32_t j = 0; j < count; ++j) {
    cpu::F8 value[E];
#pragma GCC unroll 4
    for (int e = 0; e < E; ++e) value[e] = cpu::load8(block.values[j] + d + 8 * e);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F4 factor = cpu::broadcast(weight[r * kAttentionBlock + j]);
#pragma GCC unroll 4
      for (int e = 0; e < E; ++e) {
        sum[r][e].low += factor * value[e].low;
        sum[r][e].high += factor * value[e].high;
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int e = 0; e < E; ++e) cpu::store8(output + r * dim + d + 8 * e, sum[r][e]);
  }
}

template <int R, int E, class C>
void add_all_values(const float* weight, const Block<C>& block, int32_t count, int32_t dim, float* output) {
  int32_t d = 0;
  for (; d + 8 * E <= dim; d += 8 * E) add_values<R, E>(weight, block, count, d, dim, output);
  for (; d < dim; d += 8) add_values<R, 1>(weight, block, count, d, dim, output);
}

// Scores to weights for one row; unused positions of the block count as exp(-inf) = 0.
void softmax_step(const AttentionScratch& scratch, int32_t row, int32_t count, float scale, int32_t dim) {
  float* weight = scratch.weight + int64_t{row} * kAttentionBlock;
  std::fill(weight + count, weight + kAttentionBlock, -std::numeric_limits<float>::infinity());
  for (int32_t j = 0; j < count; ++j) weight[j] *= scale;
  F4 most = cpu::broadcast(scratch.largest[row]);
  for (int32_t j = 0; j < kAttentionBlock; j += 4) most = cpu::larger(cpu::load4(weight + j), most);
  const float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  cpu::F8 sum = {};
  cpu::map_lanes(
      kAttentionBlock, weight, [&](F4 score) { return cpu::fast_exp(score - largest); }, weight);
  for (int32_t j = 0; j < kAttentionBlock; j += 8) {
    const cpu::F8 value = cpu::load8(weight + j);
    sum.low += value.low;
    sum.high += value.high;
  }
  const float shrink = cpu::fast_exp(scratch.largest[row] - largest);
  scratch.total[row] = scratch.total[row] * shrink + cpu::add_lanes(sum);
  scratch.largest[row] = largest;
  float* output = scratch.output + int64_t{row} * dim;
  for (int32_t d = 0; d < dim; ++d) output[d] *= shrink;
}

// One block of `count` positions for rows [first, last).
template <class C>
void run_block(const AttentionScratch& scratch, int32_t first, int32_t last, const Block<C>& block, int32_t count,
               float scale, int32_t dim) {
  const auto query = [&](int32_t row) { return scratch.query + int64_t{row} * dim; };
  const auto output = [&](int32_t row) { return scratch.output + int64_t{row} * dim; };
  const auto weight = [&](int32_t row) { return scratch.weight + int64_t{row} * kAttentionBlock; };
  int32_t row = first;
  for (; row + 4 <= last; row += 4) dot_all<4, 1>(query(row), block, count, dim, weight(row));
  for (; row + 2 <= last; row += 2) dot_all<2, 2>(query(row), block, count, dim, weight(row));
  for (; row < last; ++row) dot_all<1, 4>(query(row), block, count, dim, weight(row));
  for (row = first; row < last; ++row) softmax_step(scratch, row, count, scale, dim);
  row = first;
  for (; row + 4 <= last; row += 4) add_all_values<4, 1>(weight(row), block, count, dim, output(row));
  for (; row + 2 <= last; row += 2) add_all_values<2, 2>(weight(row), block, count, dim, output(row));
  for (; row < last; ++row) add_all_values<1, 4>(weight(row), block, count, dim, output(row));
}

template <class C>
void run_block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  Block<C> typed;
  for (int32_t j = 0; j < block.count; ++j) {
    typed.keys[j] = static_cast<const C*>(block.keys[j]);
    typed.values[j] = static_cast<const C*>(block.values[j]);
  }
  run_block(scratch, rows.first, rows.last, typed, block.count, rows.scale, rows.head_dim);
}

}  // namespace

void attention_block_portable(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  block.bf16 ? run_block<cpu::Bf16>(scratch, rows, block) : run_block<float>(scratch, rows, block);
}

namespace {

struct Portable {
  static constexpr const char* kName = "cpu_portable";
  static constexpr std::string_view kOrder = "attention: eight lanes, blocks of 64 positions";
  static constexpr const char* kMissing = "";
  static constexpr int32_t kMultiple = 8;
  static constexpr AttentionElements kElements = AttentionElements::kAsInMemory;
  static bool has(const device::CpuFeatures&) { return true; }
  static void block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
    attention_block_portable(scratch, rows, block);
  }
};

}  // namespace

constinit const Impl<AttentionOp> kAttentionCpuPortable = attention_tiles<Portable>();

}  // namespace assay::ops
