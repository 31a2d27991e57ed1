#include "text/stop_matcher.h"

#include <gtest/gtest.h>

namespace assay::text {
namespace {

// The text in three pushes, cut at a and b; then what finish() gives, unless a stop string matched.
std::pair<std::string, int> run(const std::vector<std::string>& stops, std::string_view text, size_t a, size_t b) {
  StopMatcher matcher(stops);
  std::string shown;
  int matched = -1;
  for (const std::string_view part : {text.substr(0, a), text.substr(a, b - a), text.substr(b)}) {
    const auto out = matcher.push(part);
    shown += out.text;
    matched = out.matched;
  }
  return {shown + matcher.finish(), matched};
}

struct Case {
  std::vector<std::string> stops;
  std::string text, shown;
  int matched;
};

const std::vector<Case> kCases = {
    {{}, "plain text", "plain text", -1},
    {{""}, "plain text", "plain text", -1},
    {{"STOP"}, "before STOP after", "before ", 0},
    {{"STOP"}, "STOSTOP", "STO", 0},
    {{"STOP"}, "never STO", "never STO", -1},
    {{"aab"}, "aaaaab", "aaa", 0},
    {{"abcd", "bc"}, "xabcd", "xa", 1},
    {{"bc", "abc"}, "xabc", "x", 1},
    {{"c", "c"}, "abc", "ab", 0},
    {{"\n\n", "<|end|>"}, "one\ntwo<|en<|end|>three\n\n", "one\ntwo<|en", 1},
    {{"é"}, "è and é", "è and ", 0},
    {{"ababac"}, "ababababac", "abab", 0},
    {{"xyz"}, "", "", -1},
};

TEST(StopMatcher, DoesNotDependOnCuts) {
  for (const Case& c : kCases) {
    for (size_t a = 0; a <= c.text.size(); ++a) {
      for (size_t b = a; b <= c.text.size(); ++b) {
        EXPECT_EQ(run(c.stops, c.text, a, b), std::make_pair(c.shown, c.matched)) << c.text << " " << a << " " << b;
      }
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeAStop) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.push("abST").text, "ab");
  EXPECT_EQ(matcher.push("x").text, "STx");
  EXPECT_EQ(matcher.push("S").text, "");
  EXPECT_EQ(matcher.finish(), "S");
}

TEST(StopMatcher, StaysMatched) {
  StopMatcher matcher({"a", "b"});
  EXPECT_EQ(matcher.push("xb").matched, 1);
  EXPECT_EQ(matcher.push("more a").matched, 1);
  EXPECT_EQ(matcher.push("more a").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace assay::text
