#include "backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"

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

// A caller that has nothing left to claim sleeps until the last holder of a piece rings; so do workers without a job.
TEST(ThreadPool, WaitsForPiecesThatTakeLongerThanASpin) {
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    const auto caller = std::this_thread::get_id();
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> on_worker{0}, done{0};
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        const bool mine = std::this_thread::get_id() == caller;
        // The caller's first piece is over only when a worker holds one; that one outlasts everything else.
        if (mine) {
          while (on_worker.load() == 0) std::this_thread::yield();
        } else if (on_worker.fetch_add(1) == 0) {
          for (const int64_t begin_us = now_us(); now_us() < begin_us + 300;) {
          }
        }
        done += static_cast<int>(end - begin);
      });
      EXPECT_EQ(done.load(), 64);
      if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Jobs of every size and pause, so that calls meet workers that run, spin, are about to sleep, and sleep.
TEST(ThreadPool, LosesNoCallWhateverTheWorkersAreDoing) {
  ThreadPool pool(3);
  std::vector<int64_t> seen(1000);
  int64_t expected = 0;
  uint32_t state = 1;
  for (int round = 0; round < 3000; ++round) {
    state = state * 1664525u + 1013904223u;
    const int64_t count = 1 + (state >> 8) % 1000;
    pool.parallel_for(count, 1 + (state >> 20) % 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] += i;
    });
    for (int64_t i = 0; i < count; ++i) expected += i;
    std::this_thread::sleep_for(std::chrono::microseconds((state >> 12) % 16 == 0 ? (state >> 16) % 256 : 0));
  }
  int64_t sum = 0;
  for (int64_t value : seen) sum += value;
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPool, EndsWhileWorkersSpinOrSleep) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) pool.parallel_for(8, 1, [](int64_t, int64_t) {});
    if (round % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// So that items stay with the thread whose cache holds them.
TEST(ThreadPool, TheCallerTakesTheFirstItemsAndWorkersTheLast) {
  for (int threads = 2; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    const auto caller = std::this_thread::get_id();
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> on_caller{0}, on_worker{0};
      std::vector<char> callers(64);
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        const bool mine = std::this_thread::get_id() == caller;
        ++(mine ? on_caller : on_worker);
        while (on_caller.load() == 0 || on_worker.load() == 0) std::this_thread::yield();  // both take part
        for (int64_t i = begin; i < end; ++i) callers[static_cast<size_t>(i)] = mine;
      });
      EXPECT_TRUE(std::is_sorted(callers.rbegin(), callers.rend()));
      EXPECT_TRUE(callers.front() && !callers.back());
    }
  }
}

TEST(ThreadPool, SmallWorkStaysOnTheCaller) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(10, 100, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

}  // namespace
}  // namespace assay::cpu
