// silu_mul: y[t, i] = round( silu(gate_up[t, i]) * gate_up[t, width + i] ), silu(x) = x / (1 + exp(-x)).
//
// gate_up [T, 2 * width], gate first; y [T, width]; both activation dtype; fp32 inside, one rounding.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct SiluMulDesc {
  int64_t width = 0;
  DType activation = DType::kBf16;
  bool operator==(const SiluMulDesc&) const = default;
};
std::string describe(const SiluMulDesc& desc);

struct SiluMulOp {
  static constexpr std::string_view kName = "silu_mul";
  using Desc = SiluMulDesc;
  using Weights = NoWeights;
  struct Args {
    TokenCounts tokens;
    ConstView gate_up;
    View y;
  };
  static std::span<const Impl<SiluMulOp>> impls();
};

}  // namespace assay::ops
