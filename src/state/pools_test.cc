#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "state/page_pool.h"
#include "state/slot_pool.h"

namespace assay::state {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

template <class Pool>
std::vector<int32_t> freed_of(Pool& pool) {
  std::vector<int32_t> indices;
  pool.collect_freed(indices);
  return indices;
}

TEST(PagePool, CountsPagesOfPositions) {
  const PagePool pool(4, 16);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(1), 1);
  EXPECT_EQ(pool.pages_for(16), 1);
  EXPECT_EQ(pool.pages_for(17), 2);
}

TEST(PagePool, GivesTheLowestFreePagesAndAllOrNothing) {
  PagePool pool(5, 16);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pool.allocate(2, first));
  ASSERT_TRUE(pool.allocate(2, second));
  EXPECT_THAT(first, ElementsAre(0, 1));
  EXPECT_THAT(second, ElementsAre(2, 3));
  pool.release(std::vector<int32_t>{1});
  EXPECT_FALSE(pool.allocate(3, second));
  EXPECT_THAT(second, ElementsAre(2, 3));
  EXPECT_EQ(pool.used(), 3);
  EXPECT_EQ(pool.free(), 2);
  ASSERT_TRUE(pool.allocate(2, second));
  EXPECT_THAT(second, ElementsAre(2, 3, 1, 4));
  EXPECT_EQ(pool.free(), 0);
}

TEST(PagePool, ListsFreedPagesOnceAlsoWhenTakenAgain) {
  PagePool pool(4, 16);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.allocate(4, pages));
  EXPECT_THAT(freed_of(pool), IsEmpty());
  pool.release(std::vector<int32_t>{3, 0});
  std::vector<int32_t> again;
  ASSERT_TRUE(pool.allocate(1, again));
  pool.release(again);
  EXPECT_THAT(freed_of(pool), ElementsAre(0, 3));
  EXPECT_THAT(freed_of(pool), IsEmpty());
}

TEST(PagePoolDeathTest, RefusesWhatIsNotTaken) {
  PagePool pool(4, 16);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.allocate(2, pages));
  pool.release(std::vector<int32_t>{1});
  EXPECT_DEATH(pool.release(std::vector<int32_t>{1}), "page 1 released but not taken");
  EXPECT_DEATH(pool.release(std::vector<int32_t>{4}), "page 4 of a pool of 4");
  EXPECT_DEATH(pool.release(std::vector<int32_t>{-1}), "page -1");
}

TEST(SlotPool, GivesTheLowestFreeSlot) {
  SlotPool pool(2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), -1);
  pool.release(0);
  EXPECT_EQ(pool.used(), 1);
  EXPECT_THAT(freed_of(pool), ElementsAre(0));
  EXPECT_EQ(pool.allocate(), 0);
}

TEST(SlotPoolDeathTest, RefusesADoubleRelease) {
  SlotPool pool(2);
  const int32_t slot = pool.allocate();
  pool.release(slot);
  EXPECT_DEATH(pool.release(slot), "slot 0 released but not taken");
}

// Against a plain set: no index is handed out twice, the lowest comes first, the counts agree.
TEST(IndexPool, AgreesWithASet) {
  IndexPool pool("place", 23);
  std::set<int32_t> free, taken, freed;
  for (int32_t i = 0; i < 23; ++i) free.insert(i);
  std::mt19937_64 random(7);
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 && !taken.empty()) {
      const int32_t index = *std::next(taken.begin(), random() % taken.size());
      pool.release(index);
      taken.erase(index);
      free.insert(index);
      freed.insert(index);
    } else if (!free.empty()) {
      const int32_t index = pool.take();
      ASSERT_EQ(index, *free.begin());
      free.erase(index);
      taken.insert(index);
    }
    ASSERT_EQ(pool.used(), static_cast<int32_t>(taken.size()));
    if (random() % 8 == 0) {
      ASSERT_EQ(freed_of(pool), std::vector<int32_t>(freed.begin(), freed.end()));
      freed.clear();
    }
  }
}

}  // namespace
}  // namespace assay::state
