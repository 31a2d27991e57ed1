// exp for fp32 as the fast CPU rows compute it: no branches, no tables, so loops over it vectorise, and every lane
// width gives the same bits. At most 1.5 ulp off where the result is normal (exp_test.cc samples every exponent).
//
// Method: x = n ln2 + r with |r| <= ln2 / 2 (ln2 in two parts, the first of 10 bits so that its product is exact), e^r
// by its Taylor polynomial of degree 7 (remainder 5e-9), then two exact multiplications by powers of two so that
// results below 2^-126 round once. exp(-inf) = 0, overflow gives +inf, a NaN stays one.
#pragma once

#include <bit>
#include <cstdint>

namespace assay::cpu {

inline float fast_exp(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // exact in 10 bits
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  // |x| to at most 105, past which results are 0 and infinity; on the bits, because a float comparison keeps gcc from
  // vectorising (it could trap). NaNs pass.
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  constexpr int32_t kLimit = 0x42d20000;  // 105.0f
  const int32_t clamped = (magnitude > kLimit) & (magnitude <= 0x7f800000) ? kLimit : magnitude;
  x = std::bit_cast<float>((bits & 0x80000000u) | static_cast<uint32_t>(clamped));
  const float shifted = x * kLog2e + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r * r + r) + 1.0f;
  const int32_t exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder));
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * first * second;
}

inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
inline float fast_silu(float x) { return x / (1.0f + fast_exp(-x)); }

}  // namespace assay::cpu
