// experts: the routed experts of a mixture, their weighted sum, the shared expert's addend and the residual.
//
//   h_e = round( silu(gate_e x) * (up_e x) )                              gate_e x and up_e x stay fp32
//   y = round( residual + round( sum_{i < k} weights_i * (down_{ids_i} h_{ids_i}) + shared_scale * shared ) )
//
// The sum runs over i in ascending order of ids_i, then the shared term; all fp32. x [T, hidden], residual, y
// [T, hidden] and shared [T, hidden] activation dtype; y may be residual. ids I32 [T, k], weights F32 [T, k],
// shared_scale F32 [T, 1]; shared and residual are optional. round(): to the activation dtype.
// Weights: per expert gate [I, hidden], up [I, hidden], down [hidden, I]; every matrix has its own global scale.
// Tap "experts.hidden": F32 [T * k, I], row t * k + i is h of token t's i-th expert (as rounded).
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct ExpertsDesc {
  int64_t hidden = 0;
  int64_t intermediate = 0;  // I
  int32_t experts = 0;
  int32_t top_k = 0;
  numeric::WeightFormat format = numeric::WeightFormat::kNvfp4;
  Lane lane = Lane::kW4A16;
  DType activation = DType::kBf16;
  bool operator==(const ExpertsDesc&) const = default;
};
std::string describe(const ExpertsDesc& desc);

struct ExpertsOp {
  static constexpr std::string_view kName = "experts";
  using Desc = ExpertsDesc;
  struct Weights {
    WeightId experts;  // gate, up, down of expert 0, then of expert 1, ...
  };
  struct Args {
    TokenCounts tokens;
    ConstView x;
    ConstView ids;
    ConstView weights;
    ConstView shared;        // optional
    ConstView shared_scale;  // with shared
    ConstView residual;      // optional
    View y;
  };
  static std::span<const Impl<ExpertsOp>> impls();
};

}  // namespace assay::ops
