// CaseRows: rows of stacked matrices as fp64, decoded from the checkpoint's bytes, for the expected values of cases.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "numeric/decode.h"
#include "ops/dot_order.h"
#include "ops/weight.h"

namespace assay::ops {

class CaseRows {
 public:
  CaseRows(std::span<const numeric::EncodedMatrix> matrices, int64_t cols) : values_(static_cast<size_t>(cols)) {
    for (numeric::EncodedMatrix matrix : matrices) {
      scales_.push_back(matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0);
      matrix.global_scale = 1;
      matrices_.push_back(std::move(matrix));
    }
  }

  // Row n of the stack without its matrix' global scale, which is scale(). Valid until the next call.
  std::span<const double> row(int64_t n) {
    size_t m = 0;
    for (; n >= matrices_[m].rows; ++m) n -= matrices_[m].rows;
    numeric::decode_row(matrices_[m], n, values_.data());
    scale_ = scales_[m];
    return values_;
  }
  double scale() const { return scale_; }

 private:
  std::vector<numeric::EncodedMatrix> matrices_;
  std::vector<double> scales_;
  std::vector<double> values_;
  double scale_ = 1;
};

// By how much rows may move each x on its way in, where the order of "fixed blocks" is one of theirs: g / 2 of its
// block (dot_order.h). Zeros elsewhere.
inline std::vector<double> case_shifts(numeric::WeightFormat format, DType activation, std::span<const double> x) {
  std::vector<double> shifts(x.size());
  if (!dot_fixed(format, activation)) return shifts;
  for (size_t first = 0; first < x.size(); first += kDotLanes) {
    double largest = 0;
    for (size_t k = first; k < first + kDotLanes; ++k) largest = std::max(largest, std::abs(x[k]));
    std::fill_n(shifts.begin() + static_cast<std::ptrdiff_t>(first), kDotLanes, fixed_grid(largest) / 2);
  }
  return shifts;
}

// sum and sum of magnitudes of the products of x and w, and of the shifts of x and |w|.
struct CaseDot {
  double sum = 0;
  double magnitudes = 0;
  double shifted = 0;
};
// Eight partial sums: one alone would wait for its own last addition.
inline CaseDot case_dot(std::span<const double> x, std::span<const double> shifts, std::span<const double> w) {
  constexpr size_t kLanes = 8;
  double sums[kLanes] = {}, magnitudes[kLanes] = {}, shifted[kLanes] = {};
  const size_t whole = x.size() / kLanes * kLanes;
  for (size_t k = 0; k < whole; k += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double term = x[k + lane] * w[k + lane];
      sums[lane] += term;
      magnitudes[lane] += std::abs(term);
      shifted[lane] += shifts[k + lane] * std::abs(w[k + lane]);
    }
  }
  CaseDot dot;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    dot.sum += sums[lane];
    dot.magnitudes += magnitudes[lane];
    dot.shifted += shifted[lane];
  }
  for (size_t k = whole; k < x.size(); ++k) {
    dot.sum += x[k] * w[k];
    dot.magnitudes += std::abs(x[k] * w[k]);
    dot.shifted += shifts[k] * std::abs(w[k]);
  }
  return dot;
}

}  // namespace assay::ops
