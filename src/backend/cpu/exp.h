// exp for fp32 as the fast CPU rows compute it: no branches, no tables, and every lane width gives the same bits. At
// most 1.5 ulp off where the result is normal (exp_test.cc samples every exponent).
//
// Method: x = n ln2 + r with |r| <= ln2 / 2 (ln2 in two parts, the first of 10 bits so that its product is exact), e^r
// by its Taylor polynomial of degree 7 (remainder 5e-9), then two exact multiplications by powers of two so that
// results below 2^-126 round once. exp(-inf) = 0, overflow gives +inf, a NaN stays one.
#pragma once

#include "backend/cpu/lanes.h"
#include "backend/cpu/sigmoid_exp.h"

namespace assay::cpu {

inline F4 fast_exp(F4 x) {
  constexpr float kLimit = 105.0f;  // past it results are 0 and infinity
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // exact in 10 bits
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  x = larger(broadcast(-kLimit), smaller(broadcast(kLimit), x));
  const F4 shifted = x * kLog2e + kRounder;
  const F4 n = shifted - kRounder;
  const F4 r = (x - n * kLn2High) - n * kLn2Low;
  F4 p = broadcast(1.0f / 5040.0f);
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r * r + r) + 1.0f;
  const I4 exponent = reinterpret_cast<I4>(shifted) - reinterpret_cast<I4>(broadcast(kRounder));
  const I4 half = exponent >> 1;
  const U4 first = reinterpret_cast<U4>(half + 127) << 23;
  const U4 second = reinterpret_cast<U4>(exponent - half + 127) << 23;
  return p * reinterpret_cast<F4>(first) * reinterpret_cast<F4>(second);
}

inline F4 sigmoid_exp(F4 x) {
  return sigmoid_exp_within(larger(broadcast(kSigmoidLeast), smaller(broadcast(kSigmoidMost), x)));
}

inline F4 fast_sigmoid(F4 x) { return 1.0f / (1.0f + sigmoid_exp(x)); }
inline F4 fast_silu(F4 x) { return x / (1.0f + sigmoid_exp(x)); }

// out[i] = body(sigmoid_exp(x[i]), x[i], in[i]...) for i < count, as map_lanes. A loop over nothing but exponentials
// has more of their chains in flight.
template <class Out, class Body, class X, class... In>
void map_with_exp(int64_t count, Out* out, const Body& body, const X* x, const In*... in) {
  constexpr int64_t kBlock = 64;
  float exponential[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = std::min(kBlock, count - first);
    map_lanes(
        block, exponential, [](F4 value) { return sigmoid_exp(value); }, x + first);
    map_lanes(block, out + first, body, exponential, x + first, in + first...);
  }
}

inline float fast_exp(float x) { return fast_exp(broadcast(x))[0]; }
inline float fast_sigmoid(float x) { return fast_sigmoid(broadcast(x))[0]; }
inline float fast_silu(float x) { return fast_silu(broadcast(x))[0]; }

}  // namespace assay::cpu
