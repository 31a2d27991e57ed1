#include "backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace assay::cpu {
namespace {

TEST(ThreadPool, CoversEveryItemOnceForAnyCountAndThreads) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 3, 5, 17, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)]++;
      });
      for (auto& item : seen) EXPECT_EQ(item.load(), 1);
    }
  }
}

TEST(ThreadPool, RunsManyRoundsAndWakesAfterSleep) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(3, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  EXPECT_EQ(sum.load(), 6000);
}

TEST(ThreadPool, SmallWorkStaysOnTheCaller) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(10, 100, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

}  // namespace
}  // namespace assay::cpu
