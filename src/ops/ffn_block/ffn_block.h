// ffn_block: the feed-forward half of a layer, norm to residual: dense, or a mixture of experts.
//
//   dense: x <- linear_down(silu_mul(linear_gate_up(rms_norm(x)))) + x
//   MoE:   n = rms_norm(x);  ids, weights, shared_scale = router(n)
//          shared = linear_down(silu_mul(linear_gate_up(n)))          when the model has a shared expert
//          x <- experts(n, ids, weights, shared, shared_scale) + x
//
// x [T, hidden] activation dtype is the residual stream, updated in place.
// Taps of the composed row: "ffn_block.norm"; MoE: "router.ids" (I32), "router.weights", "router.logits" (F32),
// "ffn_block.shared".
#pragma once

#include <optional>
#include <span>

#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/silu_mul/silu_mul.h"

namespace assay::ops {

// A gated MLP: the dense layer's, or the shared expert's.
struct MlpDesc {
  LinearDesc gate_up;
  SiluMulDesc silu_mul;
  LinearDesc down;
  bool operator==(const MlpDesc&) const = default;
};

struct FfnBlockDesc {
  RmsNormDesc norm;
  std::optional<MlpDesc> mlp;          // dense, or the shared expert
  std::optional<RouterDesc> router;    // MoE
  std::optional<ExpertsDesc> experts;  // MoE
  bool operator==(const FfnBlockDesc&) const = default;
};
std::string describe(const FfnBlockDesc& desc);

struct FfnBlockOp {
  static constexpr std::string_view kName = "ffn_block";
  using Desc = FfnBlockDesc;
  struct Weights {
    WeightId norm = WeightId::kNone;
    WeightId gate_up = WeightId::kNone;
    WeightId down = WeightId::kNone;
    WeightId router = WeightId::kNone;
    WeightId shared_gate = WeightId::kNone;
    WeightId experts = WeightId::kNone;
  };
  struct Args {
    TokenCounts tokens;
    View x;
  };
  static std::span<const Impl<FfnBlockOp>> impls();
};

}  // namespace assay::ops
