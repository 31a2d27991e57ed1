// The seam of the CPU rows that work along vectors (rms_norm, qk_norm_rope, conv_gates, silu_mul): what an instruction
// set brings.
//
// Every instruction set gives the same bits: no multiplication is fused, exponentials are backend/cpu/sigmoid_exp.h's,
// and sums take the order of dot_order.h. Kernel files (`vector_kernels_<set>.cc`) are compiled with their own flags
// and see this header and backend/cpu/simd_<set>.h only.
#pragma once

#include <cstdint>

namespace assay::ops {

// Over `count` elements at any address; E is float, or uint16_t for bf16. An output may be an input.
template <class E>
struct VectorFunctions {
  using Element = E;

  // Sum of x^2.
  float (*sum_of_squares)(const E* x, int64_t count);
  // y = x * scale * weight
  void (*norm)(const E* x, const float* weight, float scale, E* y, int64_t count);
  // y = x * scale * weight * silu(z), or sigmoid(z)
  void (*silu_norm)(const E* x, const float* weight, float scale, const E* z, E* y, int64_t count);
  void (*sigmoid_norm)(const E* x, const float* weight, float scale, const E* z, E* y, int64_t count);
  // y = silu(the sum of taps[j * tap_stride + i] * inputs[j][i] over j < width, rising)
  void (*convolve)(const E* const* inputs, int32_t width, const float* taps, int64_t tap_stride, E* y, int64_t count);
  // y = x * factor
  void (*scale)(const E* x, float factor, float* y, int64_t count);
  // y = x / divisor
  void (*divide)(const float* x, float divisor, E* y, int64_t count);
  // y = x * (scale * gain), whose first 2 * half elements are turned: element i and i + half by cosine[i] and sine[i].
  void (*rope)(const E* x, const float* gain, float scale, const float* cosine, const float* sine, int64_t half,
               float* y, int64_t count);
  // y = silu(gate) * up
  void (*silu_mul)(const E* gate, const E* up, E* y, int64_t count);
};

struct VectorKernels {
  // Cosine and sine of the fp32 products position * frequency[i], within 0.51 u of right for products below 2^20.
  void (*angles)(const float* frequency, float position, float* cosine, float* sine, int64_t count);
  VectorFunctions<uint16_t> bf16;
  VectorFunctions<float> f32;
};

// Constant-initialised.
extern const VectorKernels kVectorKernelsPortable;
extern const VectorKernels kVectorKernelsAvx2;
extern const VectorKernels kVectorKernelsAvx512;

}  // namespace assay::ops
