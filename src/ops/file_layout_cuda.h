// The layout of CUDA reference rows: a weight's checkpoint bytes, unchanged, in one blob behind a table of its
// matrices.
#pragma once

#include "ops/weight.h"

namespace assay::ops {

// One matrix of the blob. Offsets in bytes from the blob's start.
struct FileMatrix {
  int64_t data = 0;
  int64_t scales = 0;  // kNvfp4 only
  int64_t rows = 0;
  int64_t cols = 0;
  float global_scale = 1.0f;
  numeric::WeightFormat format = numeric::WeightFormat::kBf16;
};

// Blob: FileMatrix [matrices], then each matrix' data and scales, every part 16-byte aligned.
extern const Layout kCudaFileLayout;
std::vector<FileMatrix> file_matrices(const WeightSource& source);  // the table

// A packed weight as kernels see it.
struct FileWeight {
  const std::byte* blob = nullptr;
  int32_t matrices = 0;
};

Result<FileWeight> cuda_file_weight(WeightProvider& weights, WeightId id);
// The same for a weight of one matrix [rows, cols]. Errors: kCheckpoint.
Result<FileWeight> cuda_file_matrix(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols);

// Small weights of fast rows: the exact values as F32, row-major. Errors: kCheckpoint, also for nvfp4.
Result<const float*> cuda_f32_matrix(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols);

}  // namespace assay::ops
