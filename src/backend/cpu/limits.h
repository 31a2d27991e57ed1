// What this machine can do, measured: the figures that speeds of rows are shares of. Machines differ in which
// instructions are fastest, so nothing here is a constant.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "backend/cpu/thread_pool.h"
#include "device/backend.h"

namespace assay::cpu {

// Work over time, per second.
struct Rate {
  double pass = 0;   // of the best whole pass
  double burst = 0;  // of the best half millisecond or so within any pass: what no longer piece of work can reach
};

// DRAM passes go over a buffer of five times the last-level cache, as STREAM's do over arrays that no cache holds;
// FLOP/s passes last 50 ms. All threads of the pool take part.
struct Limits {
  int threads = 0;
  size_t cache_bytes = 0;  // of the last level, as the system says
  Rate dram_read;          // bytes/s
  Rate dram_copy;          // bytes/s read plus written
  double l3_read = 0;      // bytes/s, each thread over its own part of half the cache: the best burst
  Rate fma_portable;       // FLOP/s, a multiply-add is two; 0 where the CPU lacks the instructions
  Rate fma_avx2;
  Rate fma_avx512;
  Rate dot_avx512_bf16;

  double best_flops() const;  // of a pass
};

// Measures as often as wanted, so that a limit can be read in turns with the work that is compared with it: what
// disturbs the machine for a while then disturbs both.
class LimitProbe {
 public:
  // Takes five times the cache as scratch.
  LimitProbe(ThreadPool& pool, const device::DeviceCaps& caps);

  // Best of ten passes of each; about a second for each set of multiply-add instructions.
  Limits measure();
  // One pass: bytes/s.
  double read_pass() { return read().pass; }
  // One pass of the instructions that measure() found fastest: FLOP/s.
  double flop_pass() { return flops(fastest_).pass; }

 private:
  using FlopLoop = double (*)(int64_t rounds);
  Rate read();
  Rate copy();
  Rate cached_read();
  Rate flops(FlopLoop loop);

  ThreadPool& pool_;
  device::CpuFeatures cpu_;
  size_t cache_bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  FlopLoop fastest_;
};

inline Limits measure_limits(ThreadPool& pool, const device::DeviceCaps& caps) {
  return LimitProbe(pool, caps).measure();
}

}  // namespace assay::cpu
