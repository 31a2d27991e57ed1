#include "numeric/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace assay::numeric {
namespace {

uint8_t weight_block_scale(float amax, float global_scale) {
  const float scale = amax / (kE2m1Max * global_scale);
  if (scale == 0) return e4m3_from_float(1.0f);
  return e4m3_from_float(std::clamp(scale, kE4m3MinSubnormal, kE4m3Max));
}

}  // namespace

EncodedMatrix Nvfp4Matrix::view(std::string name, float input_scale) const {
  EncodedMatrix matrix;
  matrix.name = std::move(name);
  matrix.format = WeightFormat::kNvfp4;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = std::as_bytes(std::span(codes));
  matrix.scales = std::as_bytes(std::span(scales));
  matrix.global_scale = global_scale;
  matrix.input_scale = input_scale;
  return matrix;
}

float nvfp4_global_scale(float amax) { return amax == 0 ? 1.0f : amax / kNvfp4ProductMax; }

void nvfp4_quantise_row(const float* values, int64_t cols, float global_scale, uint8_t* packed, uint8_t* scales) {
  CHECK(cols % kNvfp4Block == 0, "{} columns", cols);
  for (int64_t block = 0; block < cols / kNvfp4Block; ++block) {
    const float* in = values + block * kNvfp4Block;
    uint8_t* out = packed + block * (kNvfp4Block / 2);
    scales[block] = weight_block_scale(nvfp4_block_amax(in), global_scale);
    const float step = e4m3_to_float(scales[block]) * global_scale;
    for (int64_t i = 0; i < kNvfp4Block / 2; ++i) {
      out[i] = static_cast<uint8_t>(e2m1_from_float(in[2 * i] / step) | (e2m1_from_float(in[2 * i + 1] / step) << 4));
    }
  }
}

Nvfp4Matrix nvfp4_quantise(const float* values, int64_t rows, int64_t cols) {
  CHECK(rows >= 0 && cols >= 0 && cols % kNvfp4Block == 0, "[{}, {}]", rows, cols);
  float amax = 0;
  for (int64_t i = 0; i < rows * cols; ++i) amax = std::max(amax, std::fabs(values[i]));
  Nvfp4Matrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.codes.resize(static_cast<size_t>(rows * cols / 2));
  matrix.scales.resize(static_cast<size_t>(rows * cols / kNvfp4Block));
  matrix.global_scale = nvfp4_global_scale(amax);
  for (int64_t row = 0; row < rows; ++row) {
    nvfp4_quantise_row(values + row * cols, cols, matrix.global_scale, matrix.codes.data() + row * (cols / 2),
                       matrix.scales.data() + row * (cols / kNvfp4Block));
  }
  return matrix;
}

}  // namespace assay::numeric
