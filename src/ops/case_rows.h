// CaseRows: rows of stacked matrices as fp64, decoded from the checkpoint's bytes, for the expected values of cases.
#pragma once

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
inline CaseDot case_dot(std::span<const double> x, std::span<const double> w) {
  CaseDot dot;
  for (size_t k = 0; k < x.size(); ++k) {
    const double term = x[k] * w[k];
    dot.sum += term;
    dot.magnitudes += term < 0 ? -term : term;
  }
  return dot;
}

}  // namespace assay::ops
