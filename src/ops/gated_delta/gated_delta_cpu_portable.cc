// gated_delta in plain C++; gated_delta_cpu_strips.h says how work is cut.
#include "ops/gated_delta/gated_delta_cpu_strips.h"

namespace assay::ops {
namespace {

using cpu::F4;

inline void load(const float* from, float& value) { value = *from; }
inline void load(const float* from, F4& value) { value = cpu::load4(from); }
inline void store(float* to, float value) { *to = value; }
inline void store(float* to, F4 value) { cpu::store4(to, value); }

// One token for N registers of columns: V is F4 or, for the columns beyond a multiple of four, float.
template <class V, int N>
void columns(const DeltaStep& step, int32_t column) {
  const float* from = step.from + column;
  float* to = step.to + column;
  constexpr int kWidth = sizeof(V) / sizeof(float);
  V memory[N] = {};
  for (int32_t i = 0; i < step.key_dim; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V state;
      load(from + i * step.from_stride + n * kWidth, state);
      memory[n] += state * step.k[i];
    }
  }
  V delta[N];
  V sum[N] = {};
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    V wanted;
    load(step.value + column + n * kWidth, wanted);
    delta[n] = step.beta * (wanted - step.decay * memory[n]);
  }
  for (int32_t i = 0; i < step.key_dim; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V state;
      load(from + i * step.from_stride + n * kWidth, state);
      state = step.decay * state + step.k[i] * delta[n];
      store(to + i * step.to_stride + n * kWidth, state);
      sum[n] += state * step.q[i];
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) store(step.out + column + n * kWidth, sum[n]);
}

}  // namespace

void delta_step_portable(const DeltaStep& step) {
  int32_t column = 0;
  for (; column + 16 <= step.columns; column += 16) columns<F4, 4>(step, column);
  for (; column + 4 <= step.columns; column += 4) columns<F4, 1>(step, column);
  for (; column < step.columns; ++column) columns<float, 1>(step, column);
}

namespace {

struct Portable {
  static constexpr const char* kName = "cpu_portable";
  static constexpr std::string_view kOrder = "gated_delta: token by token, keys rising, decay after the sum";
  static constexpr const char* kMissing = "";
  static bool has(const device::CpuFeatures&) { return true; }
  static void step(const DeltaStep& step) { delta_step_portable(step); }
};

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaCpuPortable = gated_delta_strips<Portable>();

}  // namespace assay::ops
