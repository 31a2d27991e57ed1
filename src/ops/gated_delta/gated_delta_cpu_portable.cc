// gated_delta in plain C++; gated_delta_cpu_strips.h says how work is cut.
#include "ops/gated_delta/gated_delta_cpu_strips.h"

namespace assay::ops {
namespace {

using cpu::F4;

inline void load(const float* from, float& value) { value = *from; }
inline void load(const float* from, F4& value) { value = cpu::load4(from); }
inline void store(float* to, float value) { *to = value; }
inline void store(float* to, F4 value) { cpu::store4(to, value); }

// One token.
struct Step {
  const float* q;
  const float* k;
  const float* value;
  float decay;
  float beta;
  int32_t key_dim;
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  float* out;
};

// N registers of columns: V is F4 or, for the columns beyond a multiple of four, float.
template <class V, int N>
void columns(const Step& step, int32_t column) {
  const float* from = step.from + column;
  float* to = step.to + column;
  constexpr int kWidth = sizeof(V) / sizeof(float);  // NOLINT(bugprone-sizeof-expression): V may be float itself
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

bool delta_run_portable(const DeltaRun& run) {
  Step step;
  step.key_dim = run.key_dim;
  step.from = run.from;
  step.from_stride = run.from_stride;
  for (int32_t t = 0; t < run.tokens; ++t) {
    const bool last = t + 1 == run.tokens;
    step.q = run.q + t * run.q_stride;
    step.k = run.k + t * run.k_stride;
    step.value = run.value + int64_t{t} * run.columns;
    step.decay = run.decay[t];
    step.beta = run.beta[t];
    step.to = last ? run.to : run.between;
    step.to_stride = last ? run.to_stride : run.columns;
    step.out = run.out + int64_t{t} * run.columns;
    int32_t column = 0;
    for (; column + 16 <= run.columns; column += 16) columns<F4, 4>(step, column);
    for (; column + 4 <= run.columns; column += 4) columns<F4, 1>(step, column);
    for (; column < run.columns; ++column) columns<float, 1>(step, column);
    step.from = step.to;
    step.from_stride = step.to_stride;
  }
  bool finite = true;
  for (int32_t i = 0; i < run.key_dim; ++i) {
    finite = !cpu::any_non_finite(run.to + i * run.to_stride, run.columns) && finite;
  }
  return finite;
}

namespace {

struct Portable {
  static constexpr const char* kName = "cpu_portable";
  static constexpr std::string_view kOrder = "gated_delta: token by token, keys rising, decay after the sum";
  static constexpr const char* kMissing = "";
  static bool has(const device::CpuFeatures&) { return true; }
  static constexpr int32_t kStrip = 64;
  static bool run(const DeltaRun& run) { return delta_run_portable(run); }
};

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaCpuPortable = gated_delta_strips<Portable>();

}  // namespace assay::ops
