// attention_block: one gated attention mixer, norm to residual.
//
//   x <- linear_out(attention(qk_norm_rope(linear_qkv(rms_norm(x))))) + x          (see the headers of the part ops)
//
// x [T, hidden] activation dtype is the residual stream, updated in place. Keys and values go to `cache`.
// Taps of the composed row: "attention_block.norm", ".qkv", ".q", ".attention" (before the output projection).
#pragma once

#include <span>

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/rms_norm/rms_norm.h"

namespace assay::ops {

struct AttentionBlockDesc {
  RmsNormDesc norm;
  LinearDesc qkv;
  QkNormRopeDesc qk_norm_rope;
  AttentionDesc attention;
  LinearDesc out;
  bool operator==(const AttentionBlockDesc&) const = default;
};
std::string describe(const AttentionBlockDesc& desc);

struct AttentionBlockOp {
  static constexpr std::string_view kName = "attention_block";
  using Desc = AttentionBlockDesc;
  struct Weights {
    WeightId norm;
    WeightId qkv;
    WeightId q_norm;
    WeightId k_norm;
    WeightId out;
  };
  struct Args {
    BatchView batch;
    View x;
    KvCacheView cache;
  };
  static std::span<const Impl<AttentionBlockOp>> impls();
};

}  // namespace assay::ops
