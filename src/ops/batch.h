// What the rows of one step look like to an op: flat arrays, no requests, no policy.
//
// Tokens of a step are ordered: first all decode and verify rows, then all prefill rows. A token's arithmetic depends
// on its phase, never on how the step was put together.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::ops {

enum class Phase : uint8_t { kPrefill, kDecode, kVerify };

// Tokens of a step. `live` is the device's copy of {decode, total} where a captured graph reads it, else null; then
// `decode` and `total` are the bucket's upper bounds.
struct TokenCounts {
  int32_t decode = 0;  // tokens [0, decode) are decode or verify rows
  int32_t total = 0;   // T; tokens [decode, total) are prefill rows
  const int32_t* live = nullptr;
};

// T tokens in B sequences. Pointers are to memory of the device that runs the op.
struct BatchView {
  TokenCounts tokens;
  int32_t sequences = 0;                 // B
  const int32_t* query_start = nullptr;  // [B + 1] first token of each sequence's query
  const int32_t* positions = nullptr;    // [T] absolute position of each token in its sequence
  const int32_t* sequence_of = nullptr;  // [T] index of the token's sequence
  const int32_t* page_table =
      nullptr;  // [B, page_table_stride] page of positions [i * page_tokens, (i+1) * page_tokens)
  int32_t page_table_stride = 0;
  const int32_t* state_read = nullptr;   // [B] recurrent-state slot to start from; -1: a new sequence, all zero
  const int32_t* state_write = nullptr;  // [B] slot to leave the state in; never one that this step reads
};

// KV cache of one layer. Element (page, head, token, d) of k or v is at page * page_stride + (head * page_tokens +
// token)
// * head_dim + d. Keys are stored after norm and rotary embedding.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kBf16;  // kBf16 or kF32
  int32_t page_tokens = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t page_stride = 0;
  float k_scale = 1.0f;  // stored = k / k_scale; 1 unless the dtype is FP8
  float v_scale = 1.0f;

  int64_t offset(int64_t page, int64_t head, int64_t token) const {
    return page * page_stride + (head * page_tokens + token) * head_dim;
  }
};

// Recurrent state of one gated-delta-net layer. Slot s: conv inputs at conv + s * conv_stride, [channels, width - 1],
// oldest first; delta-rule state at delta + s * delta_stride, fp32 [value head][key dim][value dim].
struct RecurrentStateView {
  void* conv = nullptr;
  DType conv_dtype = DType::kBf16;  // the activation dtype
  int64_t conv_stride = 0;
  float* delta = nullptr;
  int64_t delta_stride = 0;
};

}  // namespace assay::ops
