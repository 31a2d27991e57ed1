// ThreadPool: the worker threads of the CPU backend.
//
// parallel_for(count, body) runs body(begin, end) over [0, count) cut into one contiguous piece a thread; the caller
// works too and returns when all pieces are done. Workers spin for some microseconds after a piece of work and then
// sleep, so that an idle process uses no CPU. Bodies must not throw, and must not depend on how the range is cut.
//
// Owner: CpuDevice. Thread: one caller at a time (the engine thread).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "device/device.h"

namespace assay::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  using Body = std::function<void(int64_t begin, int64_t end)>;
  // grain: fewest items worth a thread of their own.
  void parallel_for(int64_t count, int64_t grain, const Body& body);

 private:
  void work(int index);
  void run_piece(int index) const;

  std::vector<std::thread> workers_;
  // One piece of work: published by raising generation_, finished when pending_ falls to zero.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  int pieces_ = 0;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleepers_ = 0;  // guarded by mutex_
};

// The pool behind a CPU stream.
inline ThreadPool& pool_of(const device::Stream& stream) { return *static_cast<ThreadPool*>(stream.handle); }

}  // namespace assay::cpu
