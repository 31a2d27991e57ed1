// E2M1, the 4-bit float of NVFP4: 1 sign (bit 3), 2 exponent (bias 1), 1 fraction bit; no NaN, no infinity.
// Codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; codes 8..15 are their negatives (8 = -0).
#pragma once

#include <cstdint>

#include "numeric/hd.h"

namespace assay::numeric {

inline constexpr float kE2m1Max = 6.0f;

// Exact. Only the low four bits count.
ASSAY_HD constexpr float e2m1_to_float(uint8_t code) {
  const uint32_t sign = (static_cast<uint32_t>(code) & 0x8u) << 28;
  const uint32_t magnitude = code & 0x7u;
  // From code 2 on a code is the exponent and top fraction bit of a float, 0x3F000000 below it.
  if (magnitude >= 2) return float_from_bits(sign | (0x3F000000u + (magnitude << 22)));
  return float_from_bits(sign | (magnitude == 1 ? 0x3F000000u : 0u));
}

// Nearest, ties to the even code, saturating at +-6; a small negative gives code 8. This is PTX
// cvt.rn.satfinite.e2m1x2, also in that a NaN gives +6.
ASSAY_HD constexpr uint8_t e2m1_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude_bits = bits & kFloatMagnitudeMask;
  if (magnitude_bits > kFloatInfinityBits) return 7;
  const float magnitude = float_from_bits(magnitude_bits);
  // One comparison per midpoint of neighbouring values; >= where the tie goes up to the even code.
  const int code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
                   (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
  return static_cast<uint8_t>(((bits >> 28) & 0x8u) | static_cast<uint32_t>(code));
}

}  // namespace assay::numeric
