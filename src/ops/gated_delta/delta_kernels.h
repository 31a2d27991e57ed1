// The fused delta rule for any instruction set: included by one kernel file each, after a simd_<set>.h of backend/cpu.
//
// A token's S' is read by the next token's m: both are made in one pass, so S is loaded and stored once a token.
#pragma once

#include "ops/gated_delta/delta_kernel.h"

namespace assay::ops {
namespace {

// The state before and after a token.
struct Pass {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
};

inline Pass pass_of(const DeltaRun& run, int32_t t) {
  const bool first = t == 0, last = t + 1 == run.tokens;
  return {first ? run.from : run.between, first ? run.from_stride : run.columns, last ? run.to : run.between,
          last ? run.to_stride : run.columns};
}

// N registers of sixteen columns. memory: m of this token; left as the next one's where kNext, as zero times S'
// otherwise, which is a NaN where S' is not finite.
template <int N, bool kNext>
inline void wide_token(const DeltaRun& run, int32_t t, int32_t column, const Pass& pass, cpu::Vec (&memory)[N]) {
  const float* k = run.k + t * run.k_stride;
  const float* q = run.q + t * run.q_stride;
  const cpu::Vec decay = cpu::broadcast(run.decay[t]), beta = cpu::broadcast(run.beta[t]);
  cpu::Vec delta[N], sum[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const cpu::Vec value = cpu::load(run.value + int64_t{t} * run.columns + column + 16 * n);
    delta[n] = cpu::mul(beta, cpu::sub(value, cpu::mul(decay, memory[n])));
    sum[n] = memory[n] = cpu::zero();
  }
  const float* from = pass.from + column;
  float* to = pass.to + column;
  for (int32_t i = 0; i < run.key_dim; ++i) {
    const cpu::Vec key = cpu::broadcast(k[i]), query = cpu::broadcast(q[i]);
    const cpu::Vec next = kNext ? cpu::broadcast(k[run.k_stride + i]) : cpu::zero();
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const cpu::Vec kept = cpu::mul(decay, cpu::load(from + i * pass.from_stride + 16 * n));
      const cpu::Vec state = cpu::fused(key, delta[n], kept);
      cpu::store(to + i * pass.to_stride + 16 * n, state);
      sum[n] = cpu::fused(state, query, sum[n]);
      memory[n] = cpu::fused(state, next, memory[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) cpu::store(run.out + int64_t{t} * run.columns + column + 16 * n, sum[n]);
}

template <int N>
inline bool wide_columns(const DeltaRun& run, int32_t column) {
  cpu::Vec memory[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) memory[n] = cpu::zero();
  const float* from = run.from + column;
  for (int32_t i = 0; i < run.key_dim; ++i) {
    const cpu::Vec key = cpu::broadcast(run.k[i]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) memory[n] = cpu::fused(cpu::load(from + i * run.from_stride + 16 * n), key, memory[n]);
  }
  int32_t t = 0;
  for (; t + 1 < run.tokens; ++t) wide_token<N, true>(run, t, column, pass_of(run, t), memory);
  wide_token<N, false>(run, t, column, pass_of(run, t), memory);
  float zero = 0;
  for (int n = 0; n < N; ++n) zero += cpu::fold(memory[n]);
  return zero == 0;
}

// A column beyond the last multiple of sixteen.
inline bool one_column(const DeltaRun& run, int32_t column) {
  float zero = 0;
  for (int32_t t = 0; t < run.tokens; ++t) {
    const Pass pass = pass_of(run, t);
    const float* k = run.k + t * run.k_stride;
    const float* q = run.q + t * run.q_stride;
    float memory = 0;
    for (int32_t i = 0; i < run.key_dim; ++i) {
      memory = __builtin_fmaf(pass.from[i * pass.from_stride + column], k[i], memory);
    }
    const float delta = run.beta[t] * (run.value[int64_t{t} * run.columns + column] - run.decay[t] * memory);
    float sum = 0;
    zero = 0;
    for (int32_t i = 0; i < run.key_dim; ++i) {
      const float kept = run.decay[t] * pass.from[i * pass.from_stride + column];
      const float state = __builtin_fmaf(k[i], delta, kept);
      pass.to[i * pass.to_stride + column] = state;
      sum = __builtin_fmaf(state, q[i], sum);
      zero += 0 * state;
    }
    run.out[int64_t{t} * run.columns + column] = sum;
  }
  return zero == 0;
}

inline bool delta_run(const DeltaRun& run) {
  bool finite = true;
  int32_t column = 0;
  for (; column + 16 * kWide <= run.columns; column += 16 * kWide) finite = wide_columns<kWide>(run, column) && finite;
  for (; column + 16 <= run.columns; column += 16) finite = wide_columns<1>(run, column) && finite;
  for (; column < run.columns; ++column) finite = one_column(run, column) && finite;
  return finite;
}

}  // namespace
}  // namespace assay::ops
