#include "proof/kernels.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "proof/testing.h"

namespace assay::proof {
namespace {

class Dtypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Dtypes, ::testing::Values(DType::kBf16, DType::kF32),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST_P(Dtypes, EveryRowOfASmallModelPassesAtHalfOfItsBounds) {
  testing::SmallModel model(GetParam());
  KernelOptions options;
  if (const char* seed = std::getenv("ASSAY_SEED")) options.seed = static_cast<uint64_t>(std::atoll(seed));
  const std::vector<Verdict> verdicts = testing::prove(model, options);
  ASSERT_GT(verdicts.size(), 30u);
  if (std::getenv("ASSAY_SHOW") != nullptr) std::fputs(table(verdicts).c_str(), stdout);
  for (const Verdict& verdict : verdicts) {
    if (verdict.state == State::kRefused) continue;
    EXPECT_EQ(verdict.state, State::kPassed)
        << verdict.op << " " << verdict.desc << " " << verdict.row << ": " << verdict.reason;
    EXPECT_LE(verdict.worst.ratio, 0.505)
        << verdict.op << " " << verdict.desc << " " << verdict.row << ": " << verdict.worst.where << " got "
        << verdict.worst.got << " expected " << verdict.worst.expected << " bound " << verdict.worst.bound;
    EXPECT_GE(verdict.repeats, 2);
    EXPECT_GT(verdict.comparisons, 0);
  }
}

}  // namespace
}  // namespace assay::proof
