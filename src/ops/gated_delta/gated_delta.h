// gated_delta: the gated delta rule, token by token, on one fp32 state matrix S [key_dim, value_dim] per value head.
//
//   S <- exp(g) S;   m = S^T k;   d = beta (v - m);   S <- S + k d^T;   o = S^T q        (decay first, read after
//   update)
//
// Value head j uses key head j / (value_heads / key_heads). State comes from slot state_read (-1: zeros) and is left in
// slot state_write. q, k F32 [T, key_heads * key_dim] as conv_gates makes them (normed, q scaled); v activation dtype
// [T, value_heads * value_dim]; g, beta F32 [T, value_heads]; out activation dtype [T, value_heads * value_dim], one
// rounding. All sums over key_dim are fp32.
// Sentinel: kNonFiniteState when a stored state value is not finite.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct GatedDeltaDesc {
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  DType activation = DType::kBf16;
  bool operator==(const GatedDeltaDesc&) const = default;
};
std::string describe(const GatedDeltaDesc& desc);

struct GatedDeltaOp {
  static constexpr std::string_view kName = "gated_delta";
  using Desc = GatedDeltaDesc;
  using Weights = NoWeights;
  struct Args {
    BatchView batch;
    ConstView q;
    ConstView k;
    ConstView v;
    ConstView g;
    ConstView beta;
    RecurrentStateView state;
    View out;
  };
  static std::span<const Impl<GatedDeltaOp>> impls();
};

}  // namespace assay::ops
