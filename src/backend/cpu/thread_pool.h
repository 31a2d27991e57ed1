// ThreadPool: the worker threads of the CPU backend.
//
// parallel_for(count, grain, body) runs body(begin, end) over [0, count) cut into contiguous pieces and returns when
// all are done. Pieces are claimed one by one, by the caller too: a worker that the system keeps from running (a busy
// neighbour on its core) delays the caller by no more than the piece it holds, because the caller does what nobody
// claimed. The caller claims from the front and workers from the back, so that with two threads each meets the same
// items job after job, in the cache that it left them in. Whoever waits, worker or caller, spins for some microseconds
// and then sleeps, and never yields: an idle process uses no CPU, and beside busy neighbours a sleeper keeps its share
// of the core for when there is work. Bodies must not throw, and their results must not depend on how the range is cut.
//
// Owner: CpuDevice. Thread: one caller at a time (the engine thread).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "backend/cpu/doorbell.h"
#include "device/device.h"

namespace assay::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // A callable (begin, end) by reference: tiny ops are called too often for a std::function's allocation.
  class Body {
   public:
    template <class F>
    Body(const F& body)
        : body_(&body),
          call_([](const void* f, int64_t begin, int64_t end) { (*static_cast<const F*>(f))(begin, end); }) {}
    void operator()(int64_t begin, int64_t end) const { call_(body_, begin, end); }

   private:
    const void* body_;
    void (*call_)(const void*, int64_t, int64_t);
  };
  // grain: fewest items worth a thread of their own.
  void parallel_for(int64_t count, int64_t grain, const Body& body);

 private:
  // The current job and its pieces [first, last) that nobody has claimed: one word, so that a claim is one
  // compare-and-swap and a worker that comes late finds either a piece of a living job or none.
  struct Ticket {
    uint32_t job;
    uint16_t first;
    uint16_t last;
  };
  static_assert(std::atomic<Ticket>::is_always_lock_free);

  void work();
  enum class Claim { kFirst, kLast };
  // Runs pieces of the current job until none is left unclaimed.
  void run_pieces(Claim claim);

  std::atomic<Ticket> ticket_{Ticket{0, 0, 0}};
  // Of the current job; written before its ticket is published, read only by those who hold a piece of it.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  int64_t pieces_ = 0;
  std::atomic<uint32_t> unfinished_{0};  // pieces; 0: the caller may go on
  Doorbell finished_;

  std::atomic<uint32_t> calls_{0};  // changes when there is a job, or nothing more to come
  Doorbell called_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The pool behind a CPU stream.
inline ThreadPool& pool_of(const device::Stream& stream) { return *static_cast<ThreadPool*>(stream.handle); }

}  // namespace assay::cpu
