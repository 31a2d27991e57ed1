// attention: causal softmax attention of a step's queries over the paged KV cache, grouped-query heads, output gate.
//
//   s_j = scale * dot(q_h, k_{h / (heads / kv_heads)}[j]) for j in [0, position]      (the token's own k is in the
//   cache) o_h = sum_j softmax(s)_j v[j];   with a gate: o_h *= sigmoid(gate_h), elementwise
//
// q, out [T, heads * head_dim]; gate: head h's gate is columns [h * gate_stride, + head_dim) of `gate` (the qkv matrix
// from the first gate column on). fp32 throughout, one rounding of the gated result to the activation dtype. lse, when
// given: F32 [T, heads], log(sum_j exp(s_j)). The order of additions depends on position and phase only, never on the
// batch.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct AttentionDesc {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  bool output_gate = true;
  DType activation = DType::kBf16;
  DType cache = DType::kBf16;
  bool operator==(const AttentionDesc&) const = default;
};
std::string describe(const AttentionDesc& desc);

struct AttentionOp {
  static constexpr std::string_view kName = "attention";
  using Desc = AttentionDesc;
  using Weights = NoWeights;
  struct Args {
    BatchView batch;
    ConstView q;
    ConstView gate;           // output_gate only
    int64_t gate_stride = 0;  // columns between the gates of neighbouring heads
    KvCacheView cache;
    View out;
    View lse;  // optional
  };
  static std::span<const Impl<AttentionOp>> impls();
};

}  // namespace assay::ops
