// linear: y = x W^T, with W as the checkpoint stores it.
//
//   y[t, n] = round( sum_k x[t, k] * W[n, k] )                        fp32 accumulation
//   with a residual: y[t, n] = round( residual[t, n] + round( sum_k x[t, k] * W[n, k] ) )
//
// x [T, K] activation dtype; y [T, N] `output` dtype; residual [T, N] of y's dtype, may be y itself. round() is to the
// output dtype (none for fp32). W is one or more matrices stacked along N, all of one format, each with its own global
// scale, which is applied once to the finished sum of a row (nvfp4).
// Lane w4a16 (nvfp4): code * block scale is exact in bf16 and fp16; no other rounding before the sum.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct LinearDesc {
  int64_t n = 0;
  int64_t k = 0;
  numeric::WeightFormat format = numeric::WeightFormat::kBf16;
  Lane lane = Lane::kBf16;
  DType activation = DType::kBf16;
  DType output = DType::kBf16;
  bool operator==(const LinearDesc&) const = default;
};
std::string describe(const LinearDesc& desc);

struct LinearOp {
  static constexpr std::string_view kName = "linear";
  using Desc = LinearDesc;
  struct Weights {
    WeightId matrix;
  };
  struct Args {
    TokenCounts tokens;
    ConstView x;
    ConstView residual;  // optional
    View y;
  };
  static std::span<const Impl<LinearOp>> impls();
};

// The lane in which a weight of this format is used with activations that are not quantised.
constexpr Lane weight_only_lane(numeric::WeightFormat format) {
  return format == numeric::WeightFormat::kNvfp4 ? Lane::kW4A16 : Lane::kBf16;
}

}  // namespace assay::ops
