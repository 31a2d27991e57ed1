// Small weights (norm vectors, conv taps, gate biases) of the fast CPU rows: from the file's bytes to fp32, once, when
// a plan is made. Reference rows do not use it.
#pragma once

#include <vector>

#include "base/result.h"
#include "numeric/weight_format.h"

namespace assay::cpu {

// All values, row-major. Errors: kCheckpoint when the sizes are not [rows, cols] or the format is not F32, BF16 or F16.
Result<std::vector<float>> load_vector(const numeric::EncodedMatrix& matrix, int64_t rows, int64_t cols);

}  // namespace assay::cpu
