// gdn_block: one gated-delta-net mixer, norm to residual.
//
//   n = rms_norm(x);   p = linear_in(n), columns [q | k | v | z];   r = linear_gates(n), columns [b | a]
//   x <- linear_out(rms_norm_gated(gated_delta(conv_gates(p.qkv, r.a, r.b)), p.z)) + x     (see the part ops)
// b and a are a projection of their own because checkpoints that quantise the first leave them in bf16.
//
// x [T, hidden] activation dtype is the residual stream, updated in place; recurrent state is read from one slot of
// `state` and written to another.
// Taps of the composed row: "gdn_block.norm", ".in_proj", ".gates", ".q", ".k", ".v", ".g", ".beta", ".delta",
// ".gated".
#pragma once

#include <span>

#include "ops/conv_gates/conv_gates.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"

namespace assay::ops {

struct GdnBlockDesc {
  RmsNormDesc norm;
  LinearDesc in_proj;  // n = channels + value_heads * value_dim
  LinearDesc gates;    // n = 2 * value_heads
  ConvGatesDesc conv_gates;
  GatedDeltaDesc gated_delta;
  RmsNormDesc gated_norm;
  LinearDesc out_proj;
  bool operator==(const GdnBlockDesc&) const = default;
};
std::string describe(const GdnBlockDesc& desc);

struct GdnBlockOp {
  static constexpr std::string_view kName = "gdn_block";
  using Desc = GdnBlockDesc;
  struct Weights {
    WeightId norm;
    WeightId in_proj;
    WeightId gates;
    WeightId conv;
    WeightId a_log;
    WeightId dt_bias;
    WeightId gated_norm;
    WeightId out_proj;
  };
  struct Args {
    BatchView batch;
    View x;
    RecurrentStateView state;
  };
  static std::span<const Impl<GdnBlockOp>> impls();
};

}  // namespace assay::ops
