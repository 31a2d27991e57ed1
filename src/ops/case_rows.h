// CaseRows: rows of stacked matrices as fp64, decoded from the checkpoint's bytes, for the expected values of cases.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "numeric/decode.h"
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

// sum and sum of magnitudes of the products of x and w.
struct CaseDot {
  double sum = 0;
  double magnitudes = 0;
};
// Eight partial sums: one alone would wait for its own last addition.
inline CaseDot case_dot(std::span<const double> x, std::span<const double> w) {
  constexpr size_t kLanes = 8;
  double sums[kLanes] = {}, magnitudes[kLanes] = {};
  const size_t whole = x.size() / kLanes * kLanes;
  for (size_t k = 0; k < whole; k += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double term = x[k + lane] * w[k + lane];
      sums[lane] += term;
      magnitudes[lane] += std::abs(term);
    }
  }
  CaseDot dot;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    dot.sum += sums[lane];
    dot.magnitudes += magnitudes[lane];
  }
  for (size_t k = whole; k < x.size(); ++k) {
    dot.sum += x[k] * w[k];
    dot.magnitudes += std::abs(x[k] * w[k]);
  }
  return dot;
}

}  // namespace assay::ops
