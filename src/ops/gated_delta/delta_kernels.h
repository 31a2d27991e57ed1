// The fused delta step for any instruction set: included by one kernel file each, after a simd_<set>.h of backend/cpu.
#pragma once

#include "ops/gated_delta/delta_kernel.h"

namespace assay::ops {
namespace {

// N registers of sixteen columns from `column` on.
template <int N>
inline void wide_columns(const DeltaStep& step, int32_t column) {
  const float* from = step.from + column;
  cpu::Vec memory[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) memory[n] = cpu::zero();
  for (int32_t i = 0; i < step.key_dim; ++i) {
    const cpu::Vec key = cpu::broadcast(step.k[i]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) memory[n] = cpu::fused(cpu::load(from + i * step.from_stride + 16 * n), key, memory[n]);
  }
  const cpu::Vec decay = cpu::broadcast(step.decay), beta = cpu::broadcast(step.beta);
  cpu::Vec delta[N], sum[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const cpu::Vec value = cpu::load(step.value + column + 16 * n);
    delta[n] = cpu::mul(beta, cpu::sub(value, cpu::mul(decay, memory[n])));
    sum[n] = cpu::zero();
  }
  float* to = step.to + column;
  for (int32_t i = 0; i < step.key_dim; ++i) {
    const cpu::Vec key = cpu::broadcast(step.k[i]), query = cpu::broadcast(step.q[i]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const cpu::Vec kept = cpu::mul(decay, cpu::load(from + i * step.from_stride + 16 * n));
      const cpu::Vec state = cpu::fused(key, delta[n], kept);
      cpu::store(to + i * step.to_stride + 16 * n, state);
      sum[n] = cpu::fused(state, query, sum[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) cpu::store(step.out + column + 16 * n, sum[n]);
}

// A column beyond the last multiple of sixteen.
inline void one_column(const DeltaStep& step, int32_t column) {
  float memory = 0;
  for (int32_t i = 0; i < step.key_dim; ++i) {
    memory = __builtin_fmaf(step.from[i * step.from_stride + column], step.k[i], memory);
  }
  const float delta = step.beta * (step.value[column] - step.decay * memory);
  float sum = 0;
  for (int32_t i = 0; i < step.key_dim; ++i) {
    const float kept = step.decay * step.from[i * step.from_stride + column];
    const float state = __builtin_fmaf(step.k[i], delta, kept);
    step.to[i * step.to_stride + column] = state;
    sum = __builtin_fmaf(state, step.q[i], sum);
  }
  step.out[column] = sum;
}

inline void delta_step(const DeltaStep& step) {
  int32_t column = 0;
  for (; column + 64 <= step.columns; column += 64) wide_columns<4>(step, column);
  for (; column + 32 <= step.columns; column += 32) wide_columns<2>(step, column);
  for (; column + 16 <= step.columns; column += 16) wide_columns<1>(step, column);
  for (; column < step.columns; ++column) one_column(step, column);
}

}  // namespace
}  // namespace assay::ops
