// One block of positions of one kv head for some query rows: what an instruction set brings to the CPU rows of
// attention. For each row: scores weight[j] = dot(query, keys[j]) * scale; the running largest score; weights
// exp(score - largest); sums and outputs shrink by exp(old largest - new largest) and take the block's.
#pragma once

#include <cstdint>

namespace assay::ops {

inline constexpr int32_t kAttentionBlock = 64;  // positions

// Rows of a tile and the running softmax of each.
struct AttentionScratch {
  float* query;    // [rows, head_dim]
  float* output;   // [rows, head_dim]
  float* weight;   // [rows, kAttentionBlock] scores, then exp(score - largest)
  float* largest;  // [rows]
  float* total;    // [rows]
};

// `count` positions: each key and value is head_dim contiguous elements, bf16 or fp32.
struct AttentionBlock {
  const void* keys[kAttentionBlock];
  const void* values[kAttentionBlock];
  const void* next = nullptr;  // the keys of the following positions, for prefetching alone; null: none, or elsewhere
  int32_t count;
  bool bf16;
};

struct AttentionRows {
  int32_t first, last;  // of the scratch
  int32_t head_dim;
  float scale;
};

// kMiddleQuadsSwapped: of every sixteen elements of query and output, those at 4-7 and 8-11 have changed places.
enum class AttentionElements : uint8_t { kAsInMemory, kMiddleQuadsSwapped };

using AttentionFunction = void (*)(const AttentionScratch&, const AttentionRows&, const AttentionBlock&);

void attention_block_portable(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block);
// head_dim a multiple of 16. Sixteen lanes, folded by halves; every sum takes a fused multiplication.
void attention_block_avx2(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block);
void attention_block_avx512(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block);

}  // namespace assay::ops
