#include "numeric/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::numeric {
namespace {

bool is_nan_code(uint32_t bits) { return (bits & 0x7FFF) > 0x7F80; }

TEST(Bf16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float({static_cast<uint16_t>(bits)});
    const uint32_t expected = is_nan_code(bits) ? bits | 0x40 : bits;
    ASSERT_EQ(bf16_from_float(value).bits, expected) << bits;
    ASSERT_EQ(std::isnan(value), is_nan_code(bits)) << bits;
  }
}

// Between every two neighbours: the midpoint goes to the even code, everything nearer to one of them goes there.
TEST(Bf16, RoundsToNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (uint32_t sign : {0u, 0x8000u}) {
      const uint32_t below = (sign | bits) << 16;
      ASSERT_EQ(bf16_from_float(float_from_bits(below | 0x8000)).bits, sign | even) << bits;
      ASSERT_EQ(bf16_from_float(float_from_bits(below | 0x7FFF)).bits, sign | bits) << bits;
      ASSERT_EQ(bf16_from_float(float_from_bits(below | 0x8001)).bits, sign | (bits + 1)) << bits;
      ASSERT_EQ(bf16_from_float(float_from_bits(below | 0x0001)).bits, sign | bits) << bits;
    }
  }
}

TEST(Bf16, NanStaysNanAndBecomesQuiet) {
  EXPECT_EQ(bf16_from_float(float_from_bits(0x7F800001)).bits, 0x7FC0);  // payload only in the lost bits
  EXPECT_EQ(bf16_from_float(float_from_bits(0xFFFFFFFF)).bits, 0xFFFF);  // rounding up would pass to zero
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()).bits, 0x7F80);
}

static_assert(round_bf16(1.00390625f) == 1.0f);       // 1 + 2^-8, a tie
static_assert(round_bf16(1.01171875f) == 1.015625f);  // 1 + 3 * 2^-8, a tie that goes up

}  // namespace
}  // namespace assay::numeric
