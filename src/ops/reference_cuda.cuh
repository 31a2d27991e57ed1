// What CUDA reference rows share: scalar access to views and to checkpoint bytes, as doubles. Fast rows use none of it.
#pragma once

#include "backend/cuda/launch.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/nvfp4.h"
#include "ops/batch.h"
#include "ops/file_layout_cuda.h"
#include "ops/plan_cuda.h"

namespace assay::ops::reference_cuda {

__device__ inline int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

__device__ inline int live_total(const TokenCounts& tokens) { return tokens.live ? tokens.live[1] : tokens.total; }

// First and one past the last live token of sequence b.
__device__ inline int first_token(const BatchView& batch, int b) {
  const int total = live_total(batch.tokens);
  return batch.query_start[b] < total ? batch.query_start[b] : total;
}
__device__ inline int end_token(const BatchView& batch, int b) { return first_token(batch, b + 1); }

__device__ inline double load(DType dtype, const void* data, int64_t index) {
  return dtype == DType::kBf16 ? numeric::bf16_to_float(static_cast<const numeric::Bf16*>(data)[index])
                               : static_cast<const float*>(data)[index];
}
__device__ inline double load(const ConstView& view, int64_t row, int64_t col) {
  return load(view.dtype, view.data, row * view.stride + col);
}

__device__ inline double round_to(DType dtype, double value) {
  const float single = static_cast<float>(value);
  return dtype == DType::kBf16 ? numeric::round_bf16(single) : single;
}

__device__ inline void store(DType dtype, void* data, int64_t index, double value) {
  if (dtype == DType::kBf16) {
    static_cast<numeric::Bf16*>(data)[index] = numeric::bf16_from_float(static_cast<float>(value));
  } else {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}
__device__ inline void store(const View& view, int64_t row, int64_t col, double value) {
  store(view.dtype, view.data, row * view.stride + col, value);
}

__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ inline double silu(double x) { return x * sigmoid(x); }

__device__ inline void flag(uint32_t* word, uint32_t bit, bool bad) {
  if (bad && word != nullptr) atomicOr(word, bit);
}

__device__ inline const FileMatrix& matrix(const FileWeight& weight, int64_t index) {
  return reinterpret_cast<const FileMatrix*>(weight.blob)[index];
}

// Without the matrix' global scale, which multiplies a finished sum. Exact.
__device__ inline double unscaled(const FileWeight& weight, const FileMatrix& matrix, int64_t row, int64_t col) {
  const std::byte* data = weight.blob + matrix.data;
  const int64_t index = row * matrix.cols + col;
  switch (matrix.format) {
    case numeric::WeightFormat::kF32:
      return reinterpret_cast<const float*>(data)[index];
    case numeric::WeightFormat::kBf16:
      return numeric::bf16_to_float(reinterpret_cast<const numeric::Bf16*>(data)[index]);
    case numeric::WeightFormat::kF16:
      return numeric::f16_to_float(reinterpret_cast<const numeric::F16*>(data)[index]);
    case numeric::WeightFormat::kNvfp4:
      break;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(data) + row * (matrix.cols / 2);
  const auto* scales = reinterpret_cast<const uint8_t*>(weight.blob + matrix.scales);
  return numeric::nvfp4_product(numeric::nvfp4_code(codes, col),
                                scales[row * (matrix.cols / numeric::kNvfp4Block) + col / numeric::kNvfp4Block]);
}

// Element of a one-matrix weight.
__device__ inline double value(const FileWeight& weight, int64_t row, int64_t col) {
  const FileMatrix& only = matrix(weight, 0);
  return unscaled(weight, only, row, col) * only.global_scale;
}

}  // namespace assay::ops::reference_cuda
