// What reference rows share: scalar access to views of any dtype. Values are double; a store rounds once to fp32 and,
// for bf16, from there to bf16, both to nearest even.
#pragma once

#include <cmath>

#include "device/view.h"
#include "numeric/bf16.h"
#include "ops/impl.h"

namespace assay::ops::reference {

inline double round_to(DType dtype, double value) {
  const float single = static_cast<float>(value);
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "cannot round to {}", dtype_name(dtype));
  return dtype == DType::kBf16 ? numeric::bf16_to_float(numeric::bf16_from_float(single)) : single;
}

inline double load(DType dtype, const void* data, int64_t index) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "cannot load {}", dtype_name(dtype));
  return dtype == DType::kBf16 ? numeric::bf16_to_float(static_cast<const numeric::Bf16*>(data)[index])
                               : static_cast<const float*>(data)[index];
}

inline void store(DType dtype, void* data, int64_t index, double value) {
  const float single = static_cast<float>(value);
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "cannot store {}", dtype_name(dtype));
  if (dtype == DType::kBf16) {
    static_cast<numeric::Bf16*>(data)[index] = numeric::bf16_from_float(single);
  } else {
    static_cast<float*>(data)[index] = single;
  }
}

inline double load(const ConstView& view, int64_t row, int64_t col) {
  return load(view.dtype, view.data, row * view.stride + col);
}

inline void store(const View& view, int64_t row, int64_t col, double value) {
  store(view.dtype, view.data, row * view.stride + col, value);
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

}  // namespace assay::ops::reference
