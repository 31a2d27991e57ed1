// How many damaged files the tests of this program made.
#include "damage/damage.h"

namespace assay::damage {
namespace {

class Count : public ::testing::Environment {
 public:
  void TearDown() override {
    std::printf("%d damaged files\n", total_count);
    if (GTEST_FLAG_GET(filter) == "*") {
      EXPECT_GE(total_count, 2000);
    }
  }
};

[[maybe_unused]] const auto* const kCount = ::testing::AddGlobalTestEnvironment(new Count);

}  // namespace
}  // namespace assay::damage
