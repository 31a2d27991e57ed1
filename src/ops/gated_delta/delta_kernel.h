// Tokens of the delta rule for a strip of value columns: what an instruction set brings to the CPU rows of gated_delta.
// For each token and column: m = sum of S[i] k[i], i rising; d = beta (value - decay m); S'[i] = decay S[i] + k[i] d;
// out = sum of S'[i] q[i], i rising. In the kernels of delta_kernels.h every sum takes a fused multiplication: S'[i] =
// fma(k[i], d, decay S[i]).
#pragma once

#include <cstdint>

namespace assay::ops {

struct DeltaRun {
  int32_t tokens;  // at least one
  int32_t key_dim;
  int32_t columns;
  const float* q;  // token t: q + t * q_stride, [key_dim]
  int64_t q_stride;
  const float* k;  // token t: k + t * k_stride
  int64_t k_stride;
  const float* value;  // token t: value + t * columns
  const float* decay;  // [tokens]
  const float* beta;   // [tokens]
  const float* from;   // S: row i at from + i * from_stride
  int64_t from_stride;
  float* to;  // S' after the last token; may be S
  int64_t to_stride;
  float* between;  // [key_dim, columns]: S' after the others; may be S or S'
  float* out;      // token t: out + t * columns
};

// Whether all of the S' that is left is finite.
using DeltaFunction = bool (*)(const DeltaRun&);

bool delta_run_portable(const DeltaRun& run);  // not fused
bool delta_run_avx2(const DeltaRun& run);
bool delta_run_avx512(const DeltaRun& run);

}  // namespace assay::ops
