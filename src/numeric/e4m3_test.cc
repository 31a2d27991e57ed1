#include "numeric/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

namespace assay::numeric {
namespace {

TEST(E4m3, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if (code == 0x7F || code == 0xFF) {
      ASSERT_TRUE(std::isnan(value));
      continue;
    }
    const int exponent = (code >> 3) & 15;
    const double magnitude = exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
    ASSERT_EQ(value, code & 0x80 ? -magnitude : magnitude) << code;
    ASSERT_EQ(std::signbit(value), code >= 0x80) << code;
  }
}

TEST(E4m3, WorkedValues) {
  const std::pair<int, double> values[] = {{0x01, 0x1p-9}, {0x07, 0.013671875}, {0x08, 0x1p-6}, {0x30, 0.5}, {0x38, 1},
                                           {0x40, 2},      {0x77, 240},         {0x78, 256},    {0x7E, 448}};
  for (const auto& [code, value] : values) EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(code)), value) << code;
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_EQ(e4m3_to_float(0x80), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
}

TEST(E4m3, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    ASSERT_EQ(e4m3_from_float(e4m3_to_float(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code));
    const float high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = low + (high - low) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (int sign : {0, 0x80}) {
      const float unit = sign ? -1.0f : 1.0f;
      ASSERT_EQ(e4m3_from_float(unit * middle), sign | even) << code;
      ASSERT_EQ(e4m3_from_float(unit * std::nextafter(middle, 0.0f)), sign | code) << code;
      ASSERT_EQ(e4m3_from_float(unit * std::nextafter(middle, high)), sign | (code + 1)) << code;
      ASSERT_EQ(e4m3_from_float(unit * std::nextafter(high, 0.0f)), sign | (code + 1)) << code;
    }
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, infinity}) {
    EXPECT_EQ(e4m3_from_float(value), 0x7E) << value;
    EXPECT_EQ(e4m3_from_float(-value), 0xFE) << value;
  }
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(e4m3_from_float(0x1p-149f), 0);
  EXPECT_EQ(e4m3_from_float(-0x1p-149f), 0x80);
}

}  // namespace
}  // namespace assay::numeric
