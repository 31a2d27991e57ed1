// Small weights of reference rows, decoded from the checkpoint's bytes.
#pragma once

#include <vector>

#include "numeric/decode.h"
#include "ops/weight.h"

namespace assay::ops::reference {

// All values of a one-matrix weight, row-major. Errors: kCheckpoint when its sizes are not [rows, cols].
inline Result<std::vector<double>> load_weight(const WeightSource& source, int64_t rows, int64_t cols) {
  if (source.matrices.size() != 1 || source.matrices[0].rows != rows || source.matrices[0].cols != cols) {
    return Error{ErrorKind::kCheckpoint,
                 "wrong size of a weight",
                 source.name,
                 fmt::format("{} matrices with {} rows", source.matrices.size(), source.rows()),
                 fmt::format("one matrix [{}, {}]", rows, cols),
                 ""};
  }
  std::vector<double> values(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) numeric::decode_row(source.matrices[0], row, values.data() + row * cols);
  return values;
}

}  // namespace assay::ops::reference
