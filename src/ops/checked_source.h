// A weight that has the sizes and format its Desc says, or the error to give from make().
#pragma once

#include <fmt/format.h>

#include "ops/weight.h"

namespace assay::ops {

// The source of `id`: `rows` rows of `cols` columns in all, every matrix of `format`. Errors: kCheckpoint.
inline Result<const WeightSource*> checked_source(const WeightProvider& weights, WeightId id, int64_t rows,
                                                  int64_t cols, numeric::WeightFormat format) {
  const WeightSource& source = weights.source(id);
  for (const numeric::EncodedMatrix& matrix : source.matrices) {
    if (matrix.cols == cols && matrix.format == format) continue;
    return Error{ErrorKind::kCheckpoint,
                 "weight does not fit the op",
                 matrix.name,
                 fmt::format("{} columns, {}", matrix.cols, numeric::weight_format_name(matrix.format)),
                 fmt::format("{} columns, {}", cols, numeric::weight_format_name(format)),
                 ""};
  }
  if (source.rows() != rows) {
    return Error{ErrorKind::kCheckpoint,
                 "weight does not fit the op",
                 source.name,
                 fmt::format("{} rows", source.rows()),
                 fmt::format("{} rows", rows),
                 ""};
  }
  return &source;
}

// The source of a vector [1, width] of any format that is not quantised. Errors: kCheckpoint.
inline Result<const WeightSource*> checked_vector(const WeightProvider& weights, WeightId id, int64_t width) {
  const WeightSource& source = weights.source(id);
  if (source.matrices.size() != 1 || source.matrices[0].format == numeric::WeightFormat::kNvfp4) {
    return Error{ErrorKind::kCheckpoint, "weight does not fit the op", source.name, "not a plain vector", "", ""};
  }
  return checked_source(weights, id, 1, width, source.matrices[0].format);
}

}  // namespace assay::ops
