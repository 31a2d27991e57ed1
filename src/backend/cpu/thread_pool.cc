#include "backend/cpu/thread_pool.h"

#include <algorithm>

#include "base/clock.h"

namespace assay::cpu {
namespace {

constexpr int64_t kSpinUs = 200;  // about one op of a small model; longer waits sleep

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() or the time is over; yields now and then so that a neighbour on the same core gets on.
template <class Done>
bool spin_until(const Done& done) {
  const int64_t deadline = now_us() + kSpinUs;
  for (int round = 0;; ++round) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
    if (now_us() > deadline) return done();
    if (round % 8 == 7) std::this_thread::yield();
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < std::max(threads, 1); ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_piece(int index) const {
  const int64_t begin = count_ * index / pieces_;
  const int64_t end = count_ * (index + 1) / pieces_;
  if (begin < end) (*body_)(begin, end);
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t wanted = std::max<int64_t>(1, count / std::max<int64_t>(grain, 1));
  const int pieces = static_cast<int>(std::min<int64_t>(wanted, threads()));
  if (pieces == 1) {
    body(0, count);
    return;
  }
  body_ = &body;
  count_ = count;
  pieces_ = pieces;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  bool someone_sleeps;
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    someone_sleeps = sleepers_ > 0;
  }
  if (someone_sleeps) wake_.notify_all();
  run_piece(0);
  while (!spin_until([this] { return pending_.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
}

void ThreadPool::work(int index) {
  uint64_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed)) {
      std::unique_lock lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, changed);
      --sleepers_;
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    if (index < pieces_) run_piece(index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace assay::cpu
