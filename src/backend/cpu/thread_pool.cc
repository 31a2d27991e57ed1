#include "backend/cpu/thread_pool.h"

#include <algorithm>

#include "base/clock.h"

namespace assay::cpu {
namespace {

constexpr int64_t kSpinUs = 200;         // about one op of a small model; longer waits sleep
constexpr int64_t kPiecesPerThread = 4;  // a late worker leaves at most a quarter of its share undone

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
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

bool ThreadPool::run_pieces() {
  bool ran = false;
  for (;;) {
    Ticket ticket = ticket_.load(std::memory_order_acquire);
    if (ticket.next >= ticket.pieces) return ran;
    Ticket claimed = ticket;
    ++claimed.next;
    if (!ticket_.compare_exchange_weak(ticket, claimed, std::memory_order_acq_rel)) continue;
    const int64_t begin = count_ * ticket.next / ticket.pieces;
    const int64_t end = count_ * (ticket.next + 1) / ticket.pieces;
    (*body_)(begin, end);
    unfinished_.fetch_sub(1, std::memory_order_release);
    ran = true;
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t wanted = count / std::max<int64_t>(grain, 1);
  if (wanted <= 1 || workers_.empty()) {
    body(0, count);
    return;
  }
  const int64_t pieces = std::min(wanted, kPiecesPerThread * threads());
  body_ = &body;
  count_ = count;
  unfinished_.store(static_cast<int>(pieces), std::memory_order_relaxed);
  const uint32_t job = ticket_.load(std::memory_order_relaxed).job + 1;
  ticket_.store(Ticket{job, static_cast<uint16_t>(pieces), 0}, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  run_pieces();
  while (!spin_until([this] { return unfinished_.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
}

void ThreadPool::work() {
  const auto something = [this] {
    const Ticket ticket = ticket_.load(std::memory_order_seq_cst);
    return ticket.next < ticket.pieces || stop_;
  };
  while (!stop_) {
    if (!spin_until(something)) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, something);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    run_pieces();
  }
}

}  // namespace assay::cpu
