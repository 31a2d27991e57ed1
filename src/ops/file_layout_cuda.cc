#include "ops/file_layout_cuda.h"

#include <cstring>

#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "ops/checked_source.h"

namespace assay::ops {
namespace {

size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

size_t table_bytes(const WeightSource& source) { return aligned(source.matrices.size() * sizeof(FileMatrix)); }

size_t blob_bytes(const WeightSource& source) {
  size_t bytes = table_bytes(source);
  for (const numeric::EncodedMatrix& matrix : source.matrices) {
    bytes += aligned(matrix.data.size()) + aligned(matrix.scales.size());
  }
  return bytes;
}

Result<void> pack(const WeightSource& source, MutableBytes out) {
  std::memset(out.data(), 0, out.size());
  const std::vector<FileMatrix> table = file_matrices(source);
  std::memcpy(out.data(), table.data(), table.size() * sizeof(FileMatrix));
  for (size_t i = 0; i < table.size(); ++i) {
    const numeric::EncodedMatrix& matrix = source.matrices[i];
    std::copy(matrix.data.begin(), matrix.data.end(), out.data() + table[i].data);
    std::copy(matrix.scales.begin(), matrix.scales.end(), out.data() + table[i].scales);
  }
  return {};
}

size_t f32_bytes(const WeightSource& source) {
  return static_cast<size_t>(source.rows() * source.matrices[0].cols) * sizeof(float);
}

Result<void> pack_f32(const WeightSource& source, MutableBytes out) {
  const numeric::EncodedMatrix& matrix = source.matrices[0];
  for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
    float value = 0;
    if (matrix.format == numeric::WeightFormat::kF32) {
      std::memcpy(&value, matrix.data.data() + i * 4, 4);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, matrix.data.data() + i * 2, 2);
      value = matrix.format == numeric::WeightFormat::kBf16 ? numeric::bf16_to_float({bits})
                                                            : numeric::f16_to_float({bits});
    }
    std::memcpy(out.data() + i * 4, &value, 4);
  }
  return {};
}

const Layout kCudaF32Layout{"cuda_f32", f32_bytes, pack_f32};

Result<void> check_one(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols) {
  const WeightSource& source = weights.source(id);
  if (source.matrices.size() == 1 && source.matrices[0].format != numeric::WeightFormat::kNvfp4) {
    ASSAY_TRY(checked_source(weights, id, rows, cols, source.matrices[0].format));
    return {};
  }
  return Error{ErrorKind::kCheckpoint, "weight does not fit the op", source.name, "not one plain matrix", "", ""};
}

}  // namespace

std::vector<FileMatrix> file_matrices(const WeightSource& source) {
  std::vector<FileMatrix> table;
  size_t end = table_bytes(source);
  const auto append = [&](ConstBytes part) {
    const size_t start = end;
    end += aligned(part.size());
    return static_cast<int64_t>(start);
  };
  for (const numeric::EncodedMatrix& matrix : source.matrices) {
    FileMatrix& entry = table.emplace_back();
    entry.data = append(matrix.data);
    entry.scales = append(matrix.scales);
    entry.rows = matrix.rows;
    entry.cols = matrix.cols;
    entry.global_scale = matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
    entry.format = matrix.format;
  }
  return table;
}

const Layout kCudaFileLayout{"cuda_file", blob_bytes, pack};

Result<FileWeight> cuda_file_weight(WeightProvider& weights, WeightId id) {
  ASSAY_ASSIGN(const PackedWeight* packed, weights.get(id, &kCudaFileLayout));
  return FileWeight{packed->data, static_cast<int32_t>(packed->source->matrices.size())};
}

Result<FileWeight> cuda_file_matrix(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols) {
  ASSAY_TRY(check_one(weights, id, rows, cols));
  return cuda_file_weight(weights, id);
}

Result<const float*> cuda_f32_matrix(WeightProvider& weights, WeightId id, int64_t rows, int64_t cols) {
  ASSAY_TRY(check_one(weights, id, rows, cols));
  ASSAY_ASSIGN(const PackedWeight* packed, weights.get(id, &kCudaF32Layout));
  return reinterpret_cast<const float*>(packed->data);
}

}  // namespace assay::ops
