// attention in plain C++: one item per (tile of query tokens of a sequence, kv head), taken by threads as they get
// free. A tile's rows (tokens times the heads that share the kv head) pass over the context in blocks of 64 absolute
// positions with an online softmax, so keys and values are read once per tile: 2 * head_dim elements a position, kv
// head and tile. Decode is bound by that read, prefill by the multiply-adds.
//
// Order, of position alone: a score is summed in the lane order of backend/cpu/lanes.h; a block's weights too; then
// sums and outputs are scaled by exp(old max - new max) and the block's values are added position by position.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/work_queue.h"
#include "ops/attention/attention_rows.h"
#include "ops/host_launch.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int32_t kBlock = 64;     // positions
constexpr int32_t kTileRows = 32;  // query rows of a tile, unless one token has more heads per kv head

// Rows of a tile and the running softmax of each.
struct Scratch {
  float* query;    // [rows, head_dim]
  float* output;   // [rows, head_dim]
  float* weight;   // [rows, kBlock] scores, then exp(score - largest)
  float* largest;  // [rows]
  float* total;    // [rows]
};

template <class C>
struct Block {
  const C* keys[kBlock];
  const C* values[kBlock];
};

// weight[r][j] = dot(query[r], keys[j]) for R rows and J keys at once.
template <int R, int J, class C>
void dot(const float* query, const C* const* keys, int32_t dim, float* weight) {
  F4 low[R][J] = {};
  F4 high[R][J] = {};
  for (int32_t d = 0; d < dim; d += 8) {
    F4 key_low[J], key_high[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) cpu::load8(keys[j] + d, key_low[j], key_high[j]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      F4 query_low, query_high;
      cpu::load8(query + r * dim + d, query_low, query_high);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        low[r][j] += query_low * key_low[j];
        high[r][j] += query_high * key_high[j];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < J; ++j) weight[r * kBlock + j] = cpu::add_lanes(low[r][j], high[r][j]);
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
  F4 sum[R][2 * E];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int e = 0; e < 2 * E; ++e) sum[r][e] = cpu::load4(output + r * dim + d + 4 * e);
  }
  for (int32_t j = 0; j < count; ++j) {
    F4 value[2 * E];
#pragma GCC unroll 4
    for (int e = 0; e < E; ++e) cpu::load8(block.values[j] + d + 8 * e, value[2 * e], value[2 * e + 1]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F4 factor = cpu::broadcast(weight[r * kBlock + j]);
#pragma GCC unroll 8
      for (int e = 0; e < 2 * E; ++e) sum[r][e] += factor * value[e];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int e = 0; e < 2 * E; ++e) cpu::store4(output + r * dim + d + 4 * e, sum[r][e]);
  }
}

template <int R, int E, class C>
void add_all_values(const float* weight, const Block<C>& block, int32_t count, int32_t dim, float* output) {
  int32_t d = 0;
  for (; d + 8 * E <= dim; d += 8 * E) add_values<R, E>(weight, block, count, d, dim, output);
  for (; d < dim; d += 8) add_values<R, 1>(weight, block, count, d, dim, output);
}

// Scores to weights for one row; unused positions of the block count as exp(-inf) = 0.
void softmax_step(const Scratch& scratch, int32_t row, int32_t count, float scale, int32_t dim) {
  float* weight = scratch.weight + int64_t{row} * kBlock;
  std::fill(weight + count, weight + kBlock, -std::numeric_limits<float>::infinity());
  for (int32_t j = 0; j < count; ++j) weight[j] *= scale;
  F4 most = cpu::broadcast(scratch.largest[row]);
  for (int32_t j = 0; j < kBlock; j += 4) {
    const F4 score = cpu::load4(weight + j);
    most = score > most ? score : most;
  }
  const float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  for (int32_t j = 0; j < kBlock; ++j) weight[j] = cpu::fast_exp(weight[j] - largest);
  F4 low = {}, high = {};
  for (int32_t j = 0; j < kBlock; j += 8) {
    low += cpu::load4(weight + j);
    high += cpu::load4(weight + j + 4);
  }
  const float shrink = cpu::fast_exp(scratch.largest[row] - largest);
  scratch.total[row] = scratch.total[row] * shrink + cpu::add_lanes(low, high);
  scratch.largest[row] = largest;
  float* output = scratch.output + int64_t{row} * dim;
  for (int32_t d = 0; d < dim; ++d) output[d] *= shrink;
}

// One block of `count` positions for rows [first, last).
template <class C>
void run_block(const Scratch& scratch, int32_t first, int32_t last, const Block<C>& block, int32_t count, float scale,
               int32_t dim) {
  const auto query = [&](int32_t row) { return scratch.query + int64_t{row} * dim; };
  const auto output = [&](int32_t row) { return scratch.output + int64_t{row} * dim; };
  const auto weight = [&](int32_t row) { return scratch.weight + int64_t{row} * kBlock; };
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

class CpuPortable : public Plan<AttentionOp::Args> {
 public:
  explicit CpuPortable(const AttentionDesc& desc) : desc_(desc) {}

  static int32_t group(const AttentionDesc& desc) { return desc.heads / desc.kv_heads; }
  static int32_t tile_tokens(const AttentionDesc& desc) { return std::max(1, kTileRows / group(desc)); }
  static int64_t slot_floats(const AttentionDesc& desc) {
    return int64_t{tile_tokens(desc)} * group(desc) * (2 * int64_t{desc.head_dim} + kBlock + 2);
  }

  void enqueue(const AttentionOp::Args& args, const Launch& launch) const override {
    CHECK(args.q.dtype == desc_.activation && args.out.dtype == desc_.activation && args.cache.dtype == desc_.cache,
          "dtypes differ from the plan's");
    const int64_t slot_bytes = slot_floats(desc_) * int64_t{sizeof(float)};
    const int64_t slots = launch.workspace.cols / slot_bytes;
    CHECK(slots > 0, "workspace of {} bytes", launch.workspace.cols);
    const BatchView& batch = args.batch;
    int64_t tiles = 0;
    for (int32_t s = 0; s < batch.sequences; ++s) tiles += tiles_of(batch, s);
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::with_activation(desc_.cache, [&]<class C>() {
        cpu::for_each_item(cpu::pool_of(launch.stream), tiles * desc_.kv_heads, slots, [&](int64_t item, int64_t slot) {
          float* memory = static_cast<float*>(launch.workspace.data) + slot * slot_floats(desc_);
          int64_t tile = tiles - 1 - item / desc_.kv_heads;  // the last of a prompt have the most to do: first
          int32_t sequence = 0;
          for (; tile >= tiles_of(batch, sequence); ++sequence) tile -= tiles_of(batch, sequence);
          const int64_t first = batch.query_start[sequence] + tile * tile_tokens(desc_);
          const int64_t last = std::min<int64_t>(first + tile_tokens(desc_), batch.query_start[sequence + 1]);
          run_tile<T, C>(args, sequence, static_cast<int32_t>(item % desc_.kv_heads), first, last, carve(memory));
        });
      });
    });
  }

 private:
  int64_t tiles_of(const BatchView& batch, int32_t sequence) const {
    const int32_t tokens = batch.query_start[sequence + 1] - batch.query_start[sequence];
    return (tokens + tile_tokens(desc_) - 1) / tile_tokens(desc_);
  }

  Scratch carve(float* memory) const {
    const int64_t rows = int64_t{tile_tokens(desc_)} * group(desc_);
    Scratch scratch;
    scratch.query = memory;
    scratch.output = scratch.query + rows * desc_.head_dim;
    scratch.weight = scratch.output + rows * desc_.head_dim;
    scratch.largest = scratch.weight + rows * kBlock;
    scratch.total = scratch.largest + rows;
    return scratch;
  }

  template <class T, class C>
  void run_tile(const AttentionOp::Args& args, int32_t sequence, int32_t kv_head, int64_t first, int64_t last,
                const Scratch& scratch) const {
    const int32_t heads = group(desc_);
    const int32_t dim = desc_.head_dim;
    const int32_t* positions = args.batch.positions;
    const auto rows = static_cast<int32_t>(last - first) * heads;
    for (int64_t token = first; token < last; ++token) {
      const T* query = args.q.row<T>(token) + int64_t{kv_head} * heads * dim;
      float* target = scratch.query + (token - first) * heads * dim;
      for (int32_t i = 0; i < heads * dim; ++i) target[i] = cpu::to_float(query[i]);
    }
    std::fill(scratch.output, scratch.output + int64_t{rows} * dim, 0.0f);
    std::fill(scratch.largest, scratch.largest + rows, -std::numeric_limits<float>::infinity());
    std::fill(scratch.total, scratch.total + rows, 0.0f);
    const auto [least, most] = std::minmax_element(positions + first, positions + last);
    const float scale = desc_.scale * args.cache.k_scale;
    Block<C> block;
    for (int32_t start = 0; start <= *most; start += kBlock) {
      locate(args, sequence, kv_head, start, std::min(kBlock, *most + 1 - start), block);
      if (start + kBlock <= *least + 1) {
        run_block(scratch, 0, rows, block, kBlock, scale, dim);
        continue;
      }
      for (int64_t token = first; token < last; ++token) {  // the diagonal: each token sees its own number of positions
        const int32_t count = std::min(kBlock, positions[token] + 1 - start);
        const auto row = static_cast<int32_t>(token - first) * heads;
        if (count > 0) run_block(scratch, row, row + heads, block, count, scale, dim);
      }
    }
    for (int32_t row = 0; row < rows; ++row)
      finish<T>(args, first + row / heads, kv_head * heads + row % heads, row, scratch);
  }

  template <class C>
  static void locate(const AttentionOp::Args& args, int32_t sequence, int32_t kv_head, int32_t start, int32_t count,
                     Block<C>& block) {
    const KvCacheView& cache = args.cache;
    const int32_t* pages = args.batch.page_table + int64_t{sequence} * args.batch.page_table_stride;
    for (int32_t j = 0; j < count; ++j) {
      const int32_t position = start + j;
      const int64_t offset = cache.offset(pages[position / cache.page_tokens], kv_head, position % cache.page_tokens);
      block.keys[j] = static_cast<const C*>(cache.k) + offset;
      block.values[j] = static_cast<const C*>(cache.v) + offset;
    }
  }

  template <class T>
  void finish(const AttentionOp::Args& args, int64_t token, int32_t head, int32_t row, const Scratch& scratch) const {
    const int32_t dim = desc_.head_dim;
    float* output = scratch.output + int64_t{row} * dim;
    const float total = scratch.total[row];
    for (int32_t d = 0; d < dim; ++d) output[d] = output[d] / total * args.cache.v_scale;
    if (desc_.output_gate) {
      const T* gate = args.gate.row<T>(token) + head * args.gate_stride;
      for (int32_t d = 0; d < dim; ++d) output[d] *= cpu::fast_sigmoid(cpu::to_float(gate[d]));
    }
    T* target = args.out.row<T>(token) + int64_t{head} * dim;
    for (int32_t d = 0; d < dim; ++d) target[d] = cpu::from_float<T>(output[d]);
    if (args.lse) args.lse.row<float>(token)[head] = scratch.largest[row] + std::log(total);
  }

  AttentionDesc desc_;
};

Refusal can_run(const AttentionDesc& desc, const DeviceCaps& caps) {
  if (desc.head_dim % 8 != 0) return "head_dim must be a multiple of 8";
  return refuse_attention(desc, caps);
}

size_t workspace_bytes(const AttentionDesc& desc, const Bucket&, MakeContext& context) {
  const auto slot = static_cast<size_t>(CpuPortable::slot_floats(desc)) * sizeof(float);
  return slot * static_cast<size_t>(std::max(1, context.caps.multiprocessors));
}

}  // namespace

constinit const Impl<AttentionOp> kAttentionCpuPortable = {
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const AttentionDesc&) { return order_id("attention: eight lanes, blocks of 64 positions"); },
    .layout = [](const AttentionDesc&) { return LayoutId{nullptr}; },
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<AttentionOp::Args>>> {
      return std::unique_ptr<Plan<AttentionOp::Args>>(new CpuPortable(desc));
    }};

}  // namespace assay::ops
