#include "base/result.h"

#include <gtest/gtest.h>

namespace assay {
namespace {

Result<int> half(int value) {
  if (value % 2) return Error{ErrorKind::kInvalidArgument, "odd number", "half", std::to_string(value), "even", ""};
  return value / 2;
}

Result<int> quarter(int value) {
  ASSAY_ASSIGN(int first, half(value));
  ASSAY_ASSIGN(int second, half(first));
  return second;
}

Result<void> must_be_even(int value) {
  ASSAY_TRY(half(value));
  return {};
}

TEST(Result, CarriesValuesAndErrors) {
  EXPECT_EQ(*quarter(8), 2);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().message(), "half: odd number: got 3, wanted even");
  EXPECT_TRUE(must_be_even(2).ok());
  EXPECT_FALSE(must_be_even(3).ok());
}

TEST(Result, MessageLeavesOutWhatIsEmpty) {
  EXPECT_EQ((Error{ErrorKind::kIo, "cannot open", "a.txt", "", "", "does it exist?"}).message(),
            "a.txt: cannot open (does it exist?)");
}

TEST(CheckDeathTest, PrintsTheOpTrace) {
  EXPECT_DEATH(
      {
        OpTrace trace("linear", 3);
        CHECK(1 == 2, "value {}", 7);
      },
      "CHECK\\(1 == 2\\) failed.*value 7.*\n.*in linear, layer 3");
}

}  // namespace
}  // namespace assay
