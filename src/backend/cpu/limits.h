// What this machine can do, measured: the figures that speeds of rows are shares of. Machines differ in which
// instructions are fastest, so nothing here is a constant.
#pragma once

#include <cstddef>

#include "backend/cpu/thread_pool.h"
#include "device/backend.h"

namespace assay::cpu {

struct Limits {
  int threads = 0;
  size_t cache_bytes = 0;   // of the last level, as the system says
  double dram_read = 0;     // bytes/s, over a buffer of at least four times the cache
  double dram_copy = 0;     // bytes/s read plus written
  double l3_read = 0;       // bytes/s, each thread over its own part of half the cache
  double fma_portable = 0;  // FLOP/s, a multiply-add is two; 0 where the CPU lacks the instructions
  double fma_avx2 = 0;
  double fma_avx512 = 0;
  double dot_avx512_bf16 = 0;

  double best_flops() const;
};

// Best of several rounds of some milliseconds each, all threads of the pool at once; about a second in all. Takes
// five times the cache as scratch.
Limits measure_limits(ThreadPool& pool, const device::DeviceCaps& caps);

}  // namespace assay::cpu
