#include "numeric/e2m1.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::numeric {
namespace {

constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

TEST(E2m1, DecodesEveryCode) {
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(value, code < 8 ? kValues[code] : -kValues[code - 8]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(e2m1_from_float(value), code);
  }
}

TEST(E2m1, RoundsToNearestTiesToTheEvenCode) {
  for (int code = 0; code < 7; ++code) {
    const float middle = (kValues[code] + kValues[code + 1]) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (int sign : {0, 8}) {
      const float unit = sign ? -1.0f : 1.0f;
      EXPECT_EQ(e2m1_from_float(unit * middle), sign | even) << middle;
      EXPECT_EQ(e2m1_from_float(unit * std::nextafter(middle, 0.0f)), sign | code) << middle;
      EXPECT_EQ(e2m1_from_float(unit * std::nextafter(middle, 7.0f)), sign | (code + 1)) << middle;
    }
  }
  // The ties of the format's definition, by value.
  const float ties[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float rounded[7] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(e2m1_to_float(e2m1_from_float(ties[i])), rounded[i]) << ties[i];
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {6.0f, 6.5f, 1e9f, infinity}) {
    EXPECT_EQ(e2m1_from_float(value), 7);
    EXPECT_EQ(e2m1_from_float(-value), 15);
  }
  EXPECT_EQ(e2m1_from_float(-0.1f), 8);
  EXPECT_EQ(e2m1_from_float(-0.0f), 8);
  EXPECT_EQ(e2m1_from_float(std::numeric_limits<float>::quiet_NaN()), 7);
}

}  // namespace
}  // namespace assay::numeric
