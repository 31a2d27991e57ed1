// E4M3FN (OCP 8-bit float): 1 sign, 4 exponent (bias 7), 3 fraction bits; no infinity, codes 0x7F and 0xFF are NaN,
// max 0x7E = 448, least normal 0x08 = 2^-6, least subnormal 0x01 = 2^-9.
#pragma once

#include <cstdint>

#include "numeric/hd.h"

namespace assay::numeric {

inline constexpr uint8_t kE4m3NanCode = 0x7F;
inline constexpr uint8_t kE4m3MaxCode = 0x7E;
inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE4m3MinSubnormal = 0x1p-9f;

ASSAY_HD constexpr bool e4m3_is_nan(uint8_t code) { return (code & 0x7F) == kE4m3NanCode; }

// Exact: every code is a float.
ASSAY_HD constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = (static_cast<uint32_t>(code) & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0x0Fu;
  const uint32_t fraction = code & 0x07u;
  if (e4m3_is_nan(code)) return float_from_bits(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * kE4m3MinSubnormal;
    return float_from_bits(sign | float_bits(magnitude));
  }
  return float_from_bits(sign | ((exponent + 120u) << 23) | (fraction << 20));
}

// Round to nearest, ties to even, saturating at +-448, infinities too. A NaN gives a NaN code of its sign.
ASSAY_HD constexpr uint8_t e4m3_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & kFloatMagnitudeMask;
  uint32_t result = 0;
  if (magnitude > kFloatInfinityBits) {
    result = kE4m3NanCode;
  } else if (magnitude >= 0x43E00000u) {  // 448
    result = kE4m3MaxCode;
  } else if (magnitude >= 0x3C800000u) {  // 2^-6: rebias the exponent from 127 to 7
    result = shift_right_nearest_even(magnitude - (120u << 23), 20);
  } else if (magnitude > 0x3A800000u) {  // above 2^-10, which ties to zero: a multiple of 2^-9
    const int exponent = static_cast<int>(magnitude >> 23);
    result = shift_right_nearest_even((magnitude & 0x007FFFFFu) | 0x00800000u, 141 - exponent);
  }
  return static_cast<uint8_t>(sign | result);
}

}  // namespace assay::numeric
