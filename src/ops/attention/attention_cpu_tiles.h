// attention on the CPU: one item per (tile of query tokens of a sequence, kv head), taken by threads as they get free.
// A tile's rows (tokens times the heads that share the kv head) pass over the context in blocks of 64 absolute
// positions with an online softmax, so keys and values are read once per tile: 2 * head_dim elements a position, kv
// head and tile. Decode is bound by that read, prefill by the multiply-adds. The arithmetic of a block is an
// AttentionFunction of attention_block.h; its order depends on positions alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/convert.h"
#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/work_queue.h"
#include "ops/attention/attention_block.h"
#include "ops/attention/attention_rows.h"
#include "ops/host_launch.h"
#include "ops/workspace.h"

namespace assay::ops {

class AttentionTiles : public Plan<AttentionOp::Args> {
 public:
  AttentionTiles(AttentionFunction block, AttentionElements elements, const AttentionDesc& desc)
      : run_block_(block), elements_(elements), desc_(desc) {}

  static int32_t group(const AttentionDesc& desc) { return desc.heads / desc.kv_heads; }
  static int32_t tile_tokens(const AttentionDesc& desc) { return std::max(1, kTileRows / group(desc)); }
  static int64_t slot_floats(const AttentionDesc& desc) {
    return int64_t{tile_tokens(desc)} * group(desc) * (2 * int64_t{desc.head_dim} + kAttentionBlock + 2);
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
  static constexpr int32_t kTileRows = 32;  // query rows of a tile, unless one token has more heads per kv head

  int64_t tiles_of(const BatchView& batch, int32_t sequence) const {
    const int32_t tokens = batch.query_start[sequence + 1] - batch.query_start[sequence];
    return (tokens + tile_tokens(desc_) - 1) / tile_tokens(desc_);
  }

  AttentionScratch carve(float* memory) const {
    const int64_t rows = int64_t{tile_tokens(desc_)} * group(desc_);
    AttentionScratch scratch;
    scratch.query = memory;
    scratch.output = scratch.query + rows * desc_.head_dim;
    scratch.weight = scratch.output + rows * desc_.head_dim;
    scratch.largest = scratch.weight + rows * kAttentionBlock;
    scratch.total = scratch.largest + rows;
    return scratch;
  }

  template <class T, class C>
  void run_tile(const AttentionOp::Args& args, int32_t sequence, int32_t kv_head, int64_t first, int64_t last,
                const AttentionScratch& scratch) const {
    const int32_t heads = group(desc_);
    const int32_t dim = desc_.head_dim;
    const int32_t* positions = args.batch.positions;
    const auto rows = static_cast<int32_t>(last - first) * heads;
    for (int64_t token = first; token < last; ++token) {
      const T* query = args.q.row<T>(token) + int64_t{kv_head} * heads * dim;
      float* target = scratch.query + (token - first) * heads * dim;
      for (int32_t i = 0; i < heads * dim; ++i) target[i] = cpu::to_float(query[i]);
    }
    arrange(scratch.query, int64_t{rows} * dim);
    std::fill(scratch.output, scratch.output + int64_t{rows} * dim, 0.0f);
    std::fill(scratch.largest, scratch.largest + rows, -std::numeric_limits<float>::infinity());
    std::fill(scratch.total, scratch.total + rows, 0.0f);
    const auto [least, most] = std::minmax_element(positions + first, positions + last);
    const float scale = desc_.scale * args.cache.k_scale;
    AttentionBlock block;
    block.bf16 = desc_.cache == DType::kBf16;
    for (int32_t start = 0; start <= *most; start += kAttentionBlock) {
      locate<C>(args, sequence, kv_head, start, *most, block);
      if (start + kAttentionBlock <= *least + 1) {
        block.count = kAttentionBlock;
        run_block_(scratch, {0, rows, dim, scale}, block);
        continue;
      }
      for (int64_t token = first; token < last; ++token) {  // the diagonal: each token sees its own number of positions
        block.count = std::min(kAttentionBlock, positions[token] + 1 - start);
        const auto row = static_cast<int32_t>(token - first) * heads;
        if (block.count > 0) run_block_(scratch, {row, row + heads, dim, scale}, block);
      }
    }
    arrange(scratch.output, int64_t{rows} * dim);
    for (int32_t row = 0; row < rows; ++row)
      finish<T>(args, first + row / heads, kv_head * heads + row % heads, row, scratch);
  }

  // Between the order in memory and the kernel's; its own inverse.
  void arrange(float* data, int64_t count) const {
    if (elements_ == AttentionElements::kAsInMemory) return;
    for (int64_t i = 0; i < count; i += 16) std::swap_ranges(data + i + 4, data + i + 8, data + i + 8);
  }

  // The block's keys and values: positions from `start` to `most` at the latest, a run in one page after the other.
  template <class C>
  static void locate(const AttentionOp::Args& args, int32_t sequence, int32_t kv_head, int32_t start, int32_t most,
                     AttentionBlock& block) {
    const KvCacheView& cache = args.cache;
    const int32_t* pages = args.batch.page_table + int64_t{sequence} * args.batch.page_table_stride;
    const auto offset = [&](int32_t position) {
      return cache.offset(pages[position / cache.page_tokens], kv_head, position % cache.page_tokens);
    };
    const int32_t end = std::min(start + kAttentionBlock, most + 1);
    for (int32_t position = start; position < end;) {
      const C* key = static_cast<const C*>(cache.k) + offset(position);
      const C* value = static_cast<const C*>(cache.v) + offset(position);
      const int32_t run = std::min(end - position, cache.page_tokens - position % cache.page_tokens);
      for (int32_t i = 0; i < run; ++i, ++position) {
        block.keys[position - start] = key + int64_t{i} * cache.head_dim;
        block.values[position - start] = value + int64_t{i} * cache.head_dim;
      }
    }
    block.next = end <= most ? static_cast<const C*>(cache.k) + offset(end) : nullptr;
  }

  template <class T>
  void finish(const AttentionOp::Args& args, int64_t token, int32_t head, int32_t row,
              const AttentionScratch& scratch) const {
    const int32_t dim = desc_.head_dim;
    float* output = scratch.output + int64_t{row} * dim;
    const float total = scratch.total[row];
    for (int32_t d = 0; d < dim; ++d) output[d] = output[d] / total * args.cache.v_scale;
    if (desc_.output_gate) {
      const T* gate = args.gate.row<T>(token) + head * args.gate_stride;
      const auto gated = [](cpu::F4 exponential, cpu::F4, cpu::F4 value) {
        return value * (1.0f / (1.0f + exponential));
      };
      cpu::map_with_exp(dim, output, gated, gate, output);
    }
    T* target = args.out.row<T>(token) + int64_t{head} * dim;
    cpu::map_lanes(
        dim, target, [](cpu::F4 value) { return value; }, output);
    if (args.lse) args.lse.row<float>(token)[head] = scratch.largest[row] + std::log(total);
  }

  AttentionFunction run_block_;
  AttentionElements elements_;
  AttentionDesc desc_;
};

// Set: kName, kOrder, kMissing (the refusal where has(CpuFeatures) is false), kMultiple (of head_dim),
// kElements, block(AttentionScratch, AttentionRows, AttentionBlock).
template <class Set>
constexpr Impl<AttentionOp> attention_tiles() {
  return {.name = Set::kName,
          .backend = Backend::kCpu,
          .order = [](const AttentionDesc&) { return order_id(Set::kOrder); },
          .layout = [](const AttentionDesc&) { return LayoutId{nullptr}; },
          .can_run = [](const AttentionDesc& desc, const DeviceCaps& caps) -> Refusal {
            if (!Set::has(caps.cpu)) return Set::kMissing;
            if (desc.head_dim % Set::kMultiple != 0) {
              return fmt::format("head_dim must be a multiple of {}", Set::kMultiple + 0);
            }
            return refuse_attention(desc, caps);
          },
          .workspace_bytes = [](const AttentionDesc& desc, const Bucket&, MakeContext& context) -> size_t {
            const auto slot = static_cast<size_t>(AttentionTiles::slot_floats(desc)) * sizeof(float);
            return slot * static_cast<size_t>(std::max(1, context.caps.multiprocessors));
          },
          .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&,
                     MakeContext&) -> Result<std::unique_ptr<Plan<AttentionOp::Args>>> {
            return std::unique_ptr<Plan<AttentionOp::Args>>(new AttentionTiles(&Set::block, Set::kElements, desc));
          }};
}

}  // namespace assay::ops
