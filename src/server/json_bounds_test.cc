#include "server/json_bounds.h"

#include <gtest/gtest.h>

#include <string>

namespace assay::server {
namespace {

TEST(JsonBounds, DepthIsCountedOutsideStrings) {
  EXPECT_EQ(check_json_bounds(R"([[1],[2]])", 2, 10), JsonBounds::kOk);
  EXPECT_EQ(check_json_bounds(R"([[1],[[2]]])", 2, 10), JsonBounds::kTooDeep);
  EXPECT_EQ(check_json_bounds(R"(["[[[[{{{{", "\"[[[["])", 1, 10), JsonBounds::kOk);
  EXPECT_EQ(check_json_bounds(std::string(1'000'000, '['), 64, 10), JsonBounds::kTooDeep);
}

TEST(JsonBounds, MembersAreCountedPerObject) {
  EXPECT_EQ(check_json_bounds(R"({"a":1,"b":[1,2,3,4,5],"c":{"d":1,"e":2}})", 8, 3), JsonBounds::kOk);
  EXPECT_EQ(check_json_bounds(R"({"a":1,"b":2,"c":3,"d":4})", 8, 3), JsonBounds::kTooManyMembers);
  EXPECT_EQ(check_json_bounds(R"([{"a":1,"b":2},{"a":1,"b":2,"c":3,"d":"x,y"}])", 8, 3), JsonBounds::kTooManyMembers);
}

TEST(JsonBounds, BrokenTextIsHarmless) {
  for (const char* text : {"", "]]]}}}", "\"abc\\", "{\"", "\\", ",,,,"}) {
    EXPECT_EQ(check_json_bounds(text, 2, 2), JsonBounds::kOk) << text;
  }
}

}  // namespace
}  // namespace assay::server
