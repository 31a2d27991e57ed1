// Weights of any format as numbers, one row at a time, straight from the file's bytes. For reference rows, tests and
// the small vectors that every row receives as floats: a fast row that decoded its matrices with this would be checked
// against itself.
#pragma once

#include <cstdint>

#include "numeric/weight_format.h"

namespace assay::numeric {

// The exact values of row `row`, out [cols]. A double holds every format exactly: an NVFP4 value is a 6-bit product
// times a 24-bit global scale.
void decode_row(const EncodedMatrix& matrix, int64_t row, double* out);

// The canonical fp32 values: the exact ones, rounded once to nearest even. Only NVFP4 rounds at all:
// float(double(e2m1 * e4m3) * double(global_scale)).
void decode_row(const EncodedMatrix& matrix, int64_t row, float* out);

}  // namespace assay::numeric
