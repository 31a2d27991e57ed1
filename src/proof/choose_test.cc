#include "proof/choose.h"

#include <gtest/gtest.h>

#include <limits>

namespace assay::proof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr ops::Layout kTiles{"tiles", nullptr, nullptr}, kRows{"rows", nullptr, nullptr};
constexpr auto weight(int id) { return static_cast<ops::WeightId>(id); }

size_t chosen(const Contest& contest) { return choose({contest}, 0).front().index; }

TEST(Choose, TheFastestWins) { EXPECT_EQ(chosen({"", {{"a", 10, {}}, {"b", 5, {}}, {"c", 7, {}}}}), 1u); }

TEST(Choose, WithinThreePercentTheFirstOfTheList) {
  EXPECT_EQ(chosen({"", {{"a", 10.2, {}}, {"b", 10, {}}}}), 0u);
  EXPECT_EQ(chosen({"", {{"a", 10.4, {}}, {"b", 10, {}}}}), 1u);
}

TEST(Choose, WithinThreePercentTheEarlierChoiceStays) {
  EXPECT_EQ(chosen({"c", {{"a", 10, {}}, {"b", 10.1, {}}, {"c", 10.29, {}}}}), 2u);
  EXPECT_EQ(chosen({"c", {{"a", 10, {}}, {"b", 10.1, {}}, {"c", 10.31, {}}}}), 0u);
  EXPECT_EQ(chosen({"gone", {{"a", 10, {}}, {"b", 9, {}}}}), 1u);
}

TEST(Choose, RowsThatWereNeverMeasuredComeLast) {
  EXPECT_EQ(chosen({"", {{"a", kInfinity, {}}, {"b", 5, {}}}}), 1u);
  EXPECT_EQ(chosen({"", {{"a", kInfinity, {}}, {"b", kInfinity, {}}}}), 0u);
}

// Contest 0 loses little by a smaller packing, contest 1 much.
std::vector<Contest> crowded() {
  return {{"", {{"packed", 10, {{weight(0), &kTiles, 100}}}, {"plain", 12, {}}}},
          {"", {{"packed", 10, {{weight(1), &kTiles, 100}}}, {"plain", 30, {}}}}};
}

TEST(Choose, PackingsThatDoNotFitAreNotChosenTheLeastLossFirst) {
  const auto indices = [](size_t bytes) {
    const auto choices = choose(crowded(), bytes);
    return std::pair(choices[0].index, choices[1].index);
  };
  EXPECT_EQ(indices(0), std::pair(size_t{0}, size_t{0}));
  EXPECT_EQ(indices(200), std::pair(size_t{0}, size_t{0}));
  EXPECT_EQ(indices(199), std::pair(size_t{1}, size_t{0}));
  EXPECT_EQ(indices(100), std::pair(size_t{1}, size_t{0}));
  EXPECT_EQ(indices(99), std::pair(size_t{1}, size_t{1}));
  EXPECT_EQ(choose(crowded(), 100)[0].reasons[0], "its packed weights do not fit beside the others'");
}

TEST(Choose, APackingThatTwoDescsReadCountsOnce) {
  const Packing shared{weight(7), &kTiles, 100};
  std::vector<Contest> contests{{"", {{"a", 1, {shared}}, {"b", 2, {{weight(7), &kRows, 10}}}}},
                                {"", {{"a", 1, {shared}}, {"b", 2, {}}}}};
  EXPECT_EQ(choose(contests, 100)[0].index, 0u);
  EXPECT_EQ(choose(contests, 100)[1].index, 0u);
}

TEST(Choose, WhereNothingFitsTheSmallestIsTaken) {
  const Contest contest{"", {{"a", 1, {{weight(0), &kTiles, 100}}}, {"b", 2, {{weight(0), &kRows, 50}}}}};
  EXPECT_EQ(choose({contest}, 10).front().index, 1u);
}

TEST(Choose, EveryOtherRowHasAReason) {
  const auto choice = choose({{"b", {{"a", 10, {}}, {"b", 10.1, {}}, {"c", 20, {}}, {"d", kInfinity, {}}}}}, 0).front();
  EXPECT_EQ(choice.index, 1u);
  EXPECT_EQ(choice.reasons, (std::vector<std::string>{"as fast within 3 %, and not the earlier choice", "",
                                                      "slower: 1.98 times b", "never measured"}));
}

TEST(Choose, ADescWithoutCandidatesIsLeftOut) { EXPECT_TRUE(choose({{"", {}}}, 0).front().reasons.empty()); }

}  // namespace
}  // namespace assay::proof
