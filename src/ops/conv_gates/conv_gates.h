// conv_gates: the front of a gated delta net: short causal convolution, split, l2 norm, gates.
//
//   u = [q | k | v] channels of `qkv`, C = 2 * key_heads * key_dim + value_heads * value_dim
//   y_t[c] = round( silu( sum_{j < width} w[c, j] * u_{t - width + 1 + j}[c] ) )     w[c, width - 1] meets the token
//   itself q_h = y_q,h * rsqrt(sum(y_q,h^2) + 1e-6) * key_dim^-0.5,   k_h = y_k,h * rsqrt(sum(y_k,h^2) + 1e-6) (sum,
//   not mean) v = y_v,   beta = sigmoid(b),   g = -exp(A_log) * softplus(a + dt_bias)  with softplus(x) = x above 20
//
// Inputs before a sequence's first token of the step come from its conv state (slot state_read; -1: zeros); the last
// width - 1 inputs, oldest first, are left in slot state_write. Both hold the unconvolved u in the activation dtype.
// qkv [T, C], a, b [T, value_heads]: activation dtype. Out: q, k F32 [T, key_heads * key_dim]; v activation dtype
// [T, value_heads * value_dim]; g, beta F32 [T, value_heads]. round(): to the activation dtype; the rest is fp32.
// Sentinel: kNonFiniteState when a stored input is not finite.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct ConvGatesDesc {
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t width = 4;
  DType activation = DType::kBf16;
  bool operator==(const ConvGatesDesc&) const = default;

  constexpr int64_t channels() const { return 2 * int64_t{key_heads} * key_dim + int64_t{value_heads} * value_dim; }
};
std::string describe(const ConvGatesDesc& desc);

struct ConvGatesOp {
  static constexpr std::string_view kName = "conv_gates";
  using Desc = ConvGatesDesc;
  struct Weights {
    WeightId conv;     // [channels, width]
    WeightId a_log;    // [1, value_heads]
    WeightId dt_bias;  // [1, value_heads]
  };
  struct Args {
    BatchView batch;
    ConstView qkv;
    ConstView a;
    ConstView b;
    RecurrentStateView state;
    View q;
    View k;
    View v;
    View g;
    View beta;
  };
  static std::span<const Impl<ConvGatesOp>> impls();
};

}  // namespace assay::ops
