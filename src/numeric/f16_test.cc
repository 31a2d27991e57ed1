#include "numeric/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::numeric {
namespace {

bool is_nan_code(uint32_t bits) { return (bits & 0x7FFF) > 0x7C00; }

TEST(F16, DecodesEveryCode) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float({static_cast<uint16_t>(bits)});
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    if (is_nan_code(bits)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    ASSERT_EQ(value, bits & 0x8000 ? -expected : expected) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
  }
}

TEST(F16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float({static_cast<uint16_t>(bits)});
    ASSERT_EQ(f16_from_float(value).bits, is_nan_code(bits) ? bits | 0x200 : bits) << bits;
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = f16_to_float({static_cast<uint16_t>(bits)});
    const float high = f16_to_float({static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;  // exact: one more bit than a half has
    ASSERT_EQ(f16_from_float(middle).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 0.0f)).bits, bits) << bits;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, high)).bits, bits + 1) << bits;
    ASSERT_EQ(f16_from_float(-middle).bits, 0x8000 | (bits % 2 == 0 ? bits : bits + 1)) << bits;
  }
}

TEST(F16, OverflowsToInfinityFrom65520) {
  EXPECT_EQ(f16_from_float(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(f16_from_float(65520.0f).bits, 0x7C00);
  EXPECT_EQ(f16_from_float(-std::numeric_limits<float>::infinity()).bits, 0xFC00);
  EXPECT_EQ(f16_from_float(float_from_bits(0x7F800001)).bits, 0x7E00);
  EXPECT_EQ(f16_from_float(0x1p-149f).bits, 0);
}

// The compiler's own half type agrees on a sample of all floats.
TEST(F16, AgreesWithTheCompiler) {
  for (uint64_t bits = 0; bits < 0x100000000; bits += 4093) {
    const float value = float_from_bits(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(f16_from_float(value).bits, __builtin_bit_cast(uint16_t, static_cast<_Float16>(value))) << bits;
  }
}

}  // namespace
}  // namespace assay::numeric
