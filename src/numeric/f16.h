// IEEE half precision: 1 sign, 5 exponent (bias 15), 10 fraction bits; max 65504, least subnormal 2^-24.
#pragma once

#include <cstdint>

#include "numeric/hd.h"

namespace assay::numeric {

struct F16 {
  uint16_t bits = 0;
};

// Round to nearest, ties to even, with subnormals; from 65520 on infinity. A NaN keeps sign and upper payload, made
// quiet.
ASSAY_HD constexpr F16 f16_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & kFloatMagnitudeMask;
  uint32_t result = 0;
  if (magnitude > kFloatInfinityBits) {
    result = 0x7E00u | ((magnitude >> 13) & 0x01FFu);
  } else if (magnitude >= 0x477FF000u) {  // 65520, halfway between 65504 and the 65536 that does not exist
    result = 0x7C00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal half: rebias the exponent from 127 to 15
    result = shift_right_nearest_even(magnitude - (112u << 23), 13);
  } else if (magnitude > 0x33000000u) {  // above 2^-25, which ties to zero: a multiple of 2^-24
    const int exponent = static_cast<int>(magnitude >> 23);
    result = shift_right_nearest_even((magnitude & 0x007FFFFFu) | 0x00800000u, 126 - exponent);
  }
  return {static_cast<uint16_t>(sign | result)};
}

ASSAY_HD constexpr float f16_to_float(F16 value) {
  const uint32_t sign = (static_cast<uint32_t>(value.bits) & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t fraction = value.bits & 0x03FFu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return float_from_bits(sign | float_bits(magnitude));
  }
  if (exponent == 0x1F) return float_from_bits(sign | kFloatInfinityBits | (fraction << 13));
  return float_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

ASSAY_HD constexpr float round_f16(float value) { return f16_to_float(f16_from_float(value)); }

}  // namespace assay::numeric
