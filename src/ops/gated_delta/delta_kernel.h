// One token of the delta rule for a strip of value columns: what an instruction set brings to the CPU rows of
// gated_delta. For each column: m = sum of S[i] k[i], i rising; d = beta (value - decay m); S'[i] = decay S[i] + k[i]
// d; out = sum of S'[i] q[i], i rising. In the kernels of this header every sum takes a fused multiplication: S'[i] =
// fma(k[i], d, decay S[i]).
#pragma once

#include <cstdint>

namespace assay::ops {

struct DeltaStep {
  const float* q;      // [key_dim]
  const float* k;      // [key_dim]
  const float* value;  // [columns]
  float decay;
  float beta;
  int32_t key_dim;
  int32_t columns;
  const float* from;  // S: row i at from + i * from_stride
  int64_t from_stride;
  float* to;  // S', may be S
  int64_t to_stride;
  float* out;  // [columns]
};

using DeltaFunction = void (*)(const DeltaStep&);

void delta_step_portable(const DeltaStep& step);  // not fused
void delta_step_avx2(const DeltaStep& step);
void delta_step_avx512(const DeltaStep& step);

}  // namespace assay::ops
