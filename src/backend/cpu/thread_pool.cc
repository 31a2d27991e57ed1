#include "backend/cpu/thread_pool.h"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace assay::cpu {
namespace {

constexpr int64_t kSpinUs = 100;         // some ops of a small model; longer waits sleep
constexpr int64_t kPiecesPerThread = 8;  // the last piece, and one that a late worker holds, are an eighth of a share

// Beside busy neighbours a worker is kept off its core in the middle of a piece, and the caller waits for it. One that
// lost much of a job's time sits out for a while, in which the caller does without: a few ms lost, then many in peace.
// Less is lost to a thread of our own that wakes for some microseconds.
constexpr int64_t kLostUs = 500;
constexpr std::chrono::milliseconds kSitOut{20};

bool lost_much(int64_t job_us, int64_t lost_us) { return lost_us > kLostUs && lost_us > job_us / 4; }

int64_t thread_cpu_us() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000 + time.tv_nsec / 1000;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() or the time is over.
template <class Done>
bool spin_until(const Done& done) {
  if (done()) return true;
  const int64_t deadline = now_us() + kSpinUs;
  while (now_us() < deadline) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++calls_;
  called_.ring(calls_);
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_pieces(Claim claim) {
  for (;;) {
    Ticket ticket = ticket_.load(std::memory_order_acquire);
    if (ticket.first >= ticket.last) return;
    Ticket left = ticket;
    const int64_t piece = claim == Claim::kFirst ? left.first++ : --left.last;
    if (!ticket_.compare_exchange_weak(ticket, left, std::memory_order_acq_rel)) continue;
    const int64_t begin = count_ * piece / pieces_;
    const int64_t end = count_ * (piece + 1) / pieces_;
    (*body_)(begin, end);
    if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1) finished_.ring(unfinished_);
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
  pieces_ = pieces;
  unfinished_.store(static_cast<uint32_t>(pieces), std::memory_order_relaxed);
  const uint32_t job = ticket_.load(std::memory_order_relaxed).job + 1;
  ticket_.store(Ticket{job, 0, static_cast<uint16_t>(pieces)}, std::memory_order_seq_cst);
  calls_.fetch_add(1, std::memory_order_seq_cst);
  called_.ring(calls_);
  run_pieces(Claim::kFirst);
  const auto done = [this] { return unfinished_.load(std::memory_order_seq_cst) == 0; };
  while (!spin_until(done)) {
    const uint32_t left = unfinished_.load(std::memory_order_seq_cst);
    if (left != 0) finished_.sleep(unfinished_, left);
  }
}

void ThreadPool::work() {
  while (!stop_) {
    const uint32_t seen = calls_.load(std::memory_order_seq_cst);
    const auto called = [&] { return calls_.load(std::memory_order_seq_cst) != seen; };
    const int64_t wall_us = now_us(), cpu_us = thread_cpu_us();
    run_pieces(Claim::kLast);
    const int64_t job_us = now_us() - wall_us;
    if (job_us > kLostUs && lost_much(job_us, job_us - (thread_cpu_us() - cpu_us))) {
      std::this_thread::sleep_for(kSitOut);
    }
    while (!spin_until(called)) called_.sleep(calls_, seen);
  }
}

}  // namespace assay::cpu
