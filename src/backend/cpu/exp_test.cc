#include "backend/cpu/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::cpu {
namespace {

double ulp_of(double value) {
  const float single = std::fabs(static_cast<float>(value));
  return static_cast<double>(std::nextafter(single, INFINITY)) - single;
}

TEST(FastExp, IsWithinOneAndAHalfUlpWhereNormal) {
  double worst = 0;
  const uint32_t step = 997;  // a prime: all exponents, many fractions
  for (uint32_t bits = 0; bits < 0x42b17000u; bits += step) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x < -87.3f) continue;
      const double wanted = std::exp(static_cast<double>(x));
      worst = std::max(worst, std::fabs(fast_exp(x) - wanted) / ulp_of(wanted));
    }
  }
  EXPECT_LT(worst, 1.5);
  EXPECT_GT(worst, 0.5);  // it is measured at all
}

TEST(FastExp, RoundsSubnormalResultsToNearbyOnes) {
  for (float x = -87.3f; x > -104.0f; x -= 0.0137f) {
    EXPECT_NEAR(fast_exp(x), std::exp(static_cast<double>(x)),
                1.5 * std::numeric_limits<float>::denorm_min() + 2e-7 * std::exp(static_cast<double>(x)))
        << x;
  }
}

TEST(FastExp, Edges) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-INFINITY), 0.0f);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(INFINITY), INFINITY);
  EXPECT_EQ(fast_exp(88.8f), INFINITY);
  EXPECT_LT(fast_exp(88.72f), INFINITY);
  EXPECT_TRUE(std::isnan(fast_exp(NAN)));
  EXPECT_TRUE(std::isnan(fast_exp(-NAN)));
}

TEST(SigmoidExp, IsWithin1Point3UlpUntilItSaturates) {
  double worst = 0;
  for (uint32_t bits = 0; bits < std::bit_cast<uint32_t>(88.3f); bits += 997) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x > 87) continue;
      const double wanted = std::exp(-static_cast<double>(x));
      worst = std::max(worst, std::fabs(sigmoid_exp(broadcast(x))[0] - wanted) / ulp_of(wanted));
    }
  }
  EXPECT_LT(worst, 1.3);
  EXPECT_GT(worst, 0.5);
}

TEST(SigmoidExp, Edges) {
  const auto of = [](float x) { return sigmoid_exp(broadcast(x))[3]; };
  EXPECT_EQ(of(0.0f), 1.0f);
  EXPECT_EQ(of(-0.0f), 1.0f);
  for (const float x : {-88.4f, -1e30f, -INFINITY}) EXPECT_EQ(of(x), INFINITY) << x;
  for (const float x : {87.1f, 1e30f, INFINITY}) EXPECT_EQ(of(x), of(87.0f)) << x;
  EXPECT_EQ(1.0f + of(87.0f), 1.0f);
  EXPECT_TRUE(std::isnan(of(NAN)));
  EXPECT_TRUE(std::isnan(of(-NAN)));
}

TEST(FastExp, SigmoidAndSiluSaturate) {
  EXPECT_EQ(fast_sigmoid(0.0f), 0.5f);
  EXPECT_EQ(fast_sigmoid(200.0f), 1.0f);
  EXPECT_EQ(fast_sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(fast_silu(-200.0f), 0.0f);
  EXPECT_EQ(fast_silu(200.0f), 200.0f);
  EXPECT_NEAR(fast_silu(-1.5f), -1.5 / (1 + std::exp(1.5)), 1e-7);
}

}  // namespace
}  // namespace assay::cpu
