// qk_norm_rope: norms q and k per head, turns them by rotary embedding, and writes k and v to the KV cache.
//
//   q_h = rope(n(q_h) * (1 + q_w)),  k_h = rope(n(k_h) * (1 + k_w)),  n(x) = x * rsqrt(mean(x^2) + eps) over head_dim
//   rope, the first `rotary_dim` values of a head (half split, i < rotary_dim / 2):
//     out_i = x_i cos - x_{i+half} sin,   out_{i+half} = x_{i+half} cos + x_i sin,   the rest passes through
//     angle = float(position) * inv_freq_i in fp32,  inv_freq_i = float(theta^(-2i / rotary_dim))
//
// qkv [T, heads * q_width + 2 * kv_heads * head_dim]: per query head first q (head_dim), then, when output_gate, its
// gate (head_dim, left alone); then all k heads, then all v heads. q_width = head_dim * (output_gate ? 2 : 1). q_out
// [T, heads * head_dim] activation dtype. Norm, rotation fp32 with one rounding at the end (q: activation dtype, k:
// cache dtype; v is converted). The token at position p of sequence s goes to page page_table[s][p / page_tokens].
// Sentinel: kNonFiniteKv when a written k or v is not finite.
// Text only: the interleaved mRoPE of Qwen3.5 with equal positions is exactly this.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct QkNormRopeDesc {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  double theta = 0;
  float eps = 1e-6f;
  bool output_gate = true;
  DType activation = DType::kBf16;
  DType cache = DType::kBf16;
  bool operator==(const QkNormRopeDesc&) const = default;
};
std::string describe(const QkNormRopeDesc& desc);

struct QkNormRopeOp {
  static constexpr std::string_view kName = "qk_norm_rope";
  using Desc = QkNormRopeDesc;
  struct Weights {
    WeightId q_norm;  // [1, head_dim]
    WeightId k_norm;  // [1, head_dim]
  };
  struct Args {
    BatchView batch;
    ConstView qkv;
    View q_out;
    KvCacheView cache;
  };
  static std::span<const Impl<QkNormRopeOp>> impls();
};

}  // namespace assay::ops
