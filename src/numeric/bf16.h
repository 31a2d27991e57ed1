// bfloat16: the upper 16 bits of an IEEE float (1 sign, 8 exponent, 7 fraction bits).
#pragma once

#include <cstdint>

#include "numeric/hd.h"

namespace assay::numeric {

struct Bf16 {
  uint16_t bits = 0;
};

// Round to nearest, ties to even; above the largest finite value to infinity. A NaN keeps sign and upper payload, made
// quiet.
ASSAY_HD constexpr Bf16 bf16_from_float(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) return {static_cast<uint16_t>((bits >> 16) | 0x0040)};
  return {static_cast<uint16_t>(shift_right_nearest_even(bits, 16))};
}

ASSAY_HD constexpr float bf16_to_float(Bf16 value) { return float_from_bits(static_cast<uint32_t>(value.bits) << 16); }

ASSAY_HD constexpr float round_bf16(float value) { return bf16_to_float(bf16_from_float(value)); }

}  // namespace assay::numeric
