// Small weights of fast CPU rows, as fp32.
#pragma once

#include <vector>

#include "backend/cpu/vector_load.h"
#include "ops/impl.h"

namespace assay::ops {

// All values of a one-matrix weight, row-major. Errors: kCheckpoint when its sizes are not [rows, cols].
inline Result<std::vector<float>> load_cpu_vector(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols) {
  const WeightSource& source = weights.source(id);
  if (source.matrices.size() != 1) {
    return Error{ErrorKind::kCheckpoint,
                 "a small weight must be one matrix",
                 source.name,
                 fmt::format("{}", source.matrices.size()),
                 "1",
                 ""};
  }
  return cpu::load_vector(source.matrices[0], rows, cols);
}

}  // namespace assay::ops
