// NVFP4: E2M1 codes, one E4M3 scale per 16 consecutive inputs of a row, one float scale per matrix. Layout:
// weight_format.h.
//
//   W[n,k] = e2m1(code) * e4m3(scale) * global_scale
//
// e2m1 * e4m3 has at most 6 significant bits and lies between 2^-10 and 2688: exact in bf16, f16 and float
// (nvfp4_test.cc checks all products). The canonical fp32 value multiplies that by global_scale and rounds once. The
// largest value a matrix can hold is 6 * 448 * global_scale, hence the quantiser's global_scale = amax / 2688.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/hd.h"
#include "numeric/weight_format.h"

namespace assay::numeric {

inline constexpr float kNvfp4ProductMax = kE2m1Max * kE4m3Max;  // 2688

// Code of element `column` of a packed row: even columns in the low nibble.
ASSAY_HD constexpr uint8_t nvfp4_code(const uint8_t* packed_row, int64_t column) {
  const uint8_t byte = packed_row[column / 2];
  return static_cast<uint8_t>(column % 2 == 0 ? byte & 0x0F : byte >> 4);
}

// e2m1 * e4m3 without the global scale: exact. NaN where the scale byte is NaN.
ASSAY_HD constexpr float nvfp4_product(uint8_t code, uint8_t scale) {
  return e2m1_to_float(code) * e4m3_to_float(scale);
}

// The canonical value: one rounding to float.
ASSAY_HD constexpr float nvfp4_value(uint8_t code, uint8_t scale, float global_scale) {
  return static_cast<float>(static_cast<double>(nvfp4_product(code, scale)) * static_cast<double>(global_scale));
}

// Canonical values of one block: 8 packed bytes to 16 floats.
ASSAY_HD constexpr void nvfp4_dequantise_block(const uint8_t* packed, uint8_t scale, float global_scale, float* out) {
  for (int64_t i = 0; i < kNvfp4Block; ++i) out[i] = nvfp4_value(nvfp4_code(packed, i), scale, global_scale);
}

// Canonical values of a row: packed [cols / 2], scales [cols / 16], out [cols].
ASSAY_HD constexpr void nvfp4_dequantise_row(const uint8_t* packed, const uint8_t* scales, float global_scale,
                                             int64_t cols, float* out) {
  for (int64_t block = 0; block < cols / kNvfp4Block; ++block) {
    nvfp4_dequantise_block(packed + block * (kNvfp4Block / 2), scales[block], global_scale, out + block * kNvfp4Block);
  }
}

ASSAY_HD constexpr float nvfp4_block_amax(const float* values) {
  float amax = 0;
  for (int64_t i = 0; i < kNvfp4Block; ++i) {
    const float magnitude = float_from_bits(float_bits(values[i]) & kFloatMagnitudeMask);
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

// Quantise one block of an activation with its static input_scale (the w4a4 lane); returns the E4M3 scale. In fp32,
// every operation correctly rounded (division is not replaced by an approximate reciprocal):
//   g = 1 / input_scale;  s = e4m3((g * amax) / 6), saturating;  code = e2m1(x * (1 / (s / g))), or 0 where s is 0.
// Values beyond the calibrated range saturate at 6 * 448 * input_scale. Dequantised: e2m1 * s * input_scale.
ASSAY_HD constexpr uint8_t nvfp4_quantise_activation_block(const float* values, float input_scale, uint8_t* packed) {
  const float g = 1.0f / input_scale;
  const uint8_t scale = e4m3_from_float(g * nvfp4_block_amax(values) / kE2m1Max);
  const float decoded = e4m3_to_float(scale);
  const float multiplier = decoded == 0 ? 0.0f : 1.0f / (decoded / g);
  for (int64_t i = 0; i < kNvfp4Block / 2; ++i) {
    const uint8_t low = decoded == 0 ? 0 : e2m1_from_float(values[2 * i] * multiplier);
    const uint8_t high = decoded == 0 ? 0 : e2m1_from_float(values[2 * i + 1] * multiplier);
    packed[i] = static_cast<uint8_t>(low | (high << 4));
  }
  return scale;
}

// A quantised matrix that owns its bytes: codes [rows, cols / 2], scales [rows, cols / 16].
struct Nvfp4Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  float global_scale = 1.0f;

  // Non-owning; valid while this lives and does not move.
  EncodedMatrix view(std::string name, float input_scale = 0.0f) const;
};

// amax / 2688, for weights and (calibrated) activations alike; 1 for amax 0, because a global scale must be above 0.
float nvfp4_global_scale(float amax);

// Quantise a row of weights the ModelOpt way, given the matrix's global scale: block scale
// s = e4m3(clamp(amax_block / (6 * global_scale), 2^-9, 448)), 1.0 for an all-zero block; code = e2m1(w / (s *
// global_scale)). cols must be a multiple of 16.
void nvfp4_quantise_row(const float* values, int64_t cols, float global_scale, uint8_t* packed, uint8_t* scales);

// Quantise finite values [rows, cols], row-major.
Nvfp4Matrix nvfp4_quantise(const float* values, int64_t rows, int64_t cols);

}  // namespace assay::numeric
