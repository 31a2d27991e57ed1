// exp(-x) for a denominator 1 + exp(-x), in 21 operations and a clamp where fast_exp has 31 and one, and the same bits
// for every lane width: F is any register of fp32 with the compiler's operators. At most 1.3 ulp off from -88.3 to 87;
// infinity below -88.4, and above 87 as at 87, where it is nothing beside 1. A NaN stays one.
//
// Method: fast_exp's, with s = x - n ln2 of |s| <= ln2 / 2 and e^-s = 1 - s + s^2 q(s), q the minimax polynomial of
// degree 4 (relative error of e^-s 4e-9); one multiplication by 2^-n, which no result in that range needs split. Sums
// are grouped for a short chain.
#pragma once

namespace assay::cpu {

inline constexpr float kSigmoidLeast = -89.0f, kSigmoidMost = 87.0f;

// Of x clamped to [kSigmoidLeast, kSigmoidMost] by the caller, whose instruction passes a NaN on. Always inline:
// kernel files compile this with their own flags, and no copy of it may be left to the linker.
template <class F>
[[gnu::always_inline]] inline F sigmoid_exp_within(F x) {
  constexpr float kMinusLog2e = -1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f + 127.0f;  // as fast_exp's; the low bits become the exponent field of 2^-n
  using Bits = decltype(x < F{});
  const F shifted = x * kMinusLog2e + kRounder;
  const F minus_n = shifted - kRounder;
  const F s = (x + minus_n * kLn2High) + minus_n * kLn2Low;
  const F s2 = s * s;
  const F q = (s * -0.166665211f + 0.49999994f) + s2 * ((s * -0.00836874545f + 0.0416683890f) + s2 * 0.00138145395f);
  const F power = reinterpret_cast<F>(reinterpret_cast<Bits>(shifted) << 23);
  return (q * s2 + (1.0f - s)) * power;
}

}  // namespace assay::cpu
