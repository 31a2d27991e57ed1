#include "backend/cpu/lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace assay::cpu {
namespace {

// Every bf16, and fp32 on both sides of every rounding boundary.
TEST(Lanes, RoundToBf16AsTheScalarDoes) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      const Bf16 wanted = from_float<Bf16>(value);
      Bf16 stored[8];
      store8(stored, {broadcast(value), broadcast(-value)});
      ASSERT_EQ(stored[0].bits, wanted.bits) << std::hex << upper << lower;
      ASSERT_EQ(stored[7].bits, from_float<Bf16>(-value).bits);
      ASSERT_EQ(std::bit_cast<uint32_t>(round_through<Bf16>(broadcast(value))[2]), uint32_t{wanted.bits} << 16);
    }
  }
}

TEST(Lanes, LoadsWidenInOrder) {
  Bf16 data[8];
  for (int i = 0; i < 8; ++i) data[i] = from_float<Bf16>(static_cast<float>(i) - 2.5f);
  const F8 all = load8(data), part = load_part(data, 5, from_float<Bf16>(9));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(i < 4 ? all.low[i] : all.high[i - 4], static_cast<float>(i) - 2.5f);
    EXPECT_EQ(i < 4 ? part.low[i] : part.high[i - 4], i < 5 ? static_cast<float>(i) - 2.5f : 9.0f);
  }
}

TEST(Lanes, LargerAndSmallerPassOverNans) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const F4 a = {1, nan, -2, 0}, b = {2, 3, nan, -1};
  const F4 most = larger(a, b), least = smaller(a, b);
  EXPECT_TRUE(most[0] == 2 && most[1] == 3 && std::isnan(most[2]) && most[3] == 0);
  EXPECT_TRUE(least[0] == 1 && least[1] == 3 && std::isnan(least[2]) && least[3] == -1);
}

// Each element once, nothing behind the last, also in place.
TEST(Lanes, MapGoesOverAnyCount) {
  for (int64_t count = 0; count < 30; ++count) {
    std::vector<float> x(40, 3), out(40, -1);
    std::vector<Bf16> y(40, from_float<Bf16>(2));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const auto body = [](F4 a, F4 b) { return a * b + 1.0f; };
    map_lanes(count, out.data(), body, x.data(), y.data());
    map_lanes(count, y.data(), body, x.data(), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const bool written = i < static_cast<size_t>(count);
      ASSERT_EQ(out[i], written ? 2 * x[i] + 1 : -1.0f) << count << " " << i;
      ASSERT_EQ(to_float(y[i]), written ? 2 * x[i] + 1 : 2.0f) << count << " " << i;
    }
  }
}

}  // namespace
}  // namespace assay::cpu
