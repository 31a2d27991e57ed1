// The loops of limits_kernel.h for any instruction set: included by one kernel file each, after a simd_<set>.h.
#pragma once

#include "backend/cpu/limits_kernel.h"

namespace assay::cpu {
namespace {

// Kept out of the optimiser's sight, so that the work is done.
inline void use(Vec value) {
  alignas(64) float lanes[16];
  store(lanes, value);
  asm volatile("" : : "r"(lanes) : "memory");
}

// Chains: as many as hide the latency and fit the registers.
template <int kChains>
inline double multiply_add(int64_t rounds) {
  Vec sum[kChains];
  float start[kChains + 15];  // no two registers alike, or they would be computed once
  for (int i = 0; i < kChains + 15; ++i) start[i] = static_cast<float>(i);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sum[c] = load(start + c);
  const Vec factor = broadcast(0.5f), value = broadcast(1.0f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = fused(sum[c], factor, value);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) use(sum[c]);
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

}  // namespace
}  // namespace assay::cpu
