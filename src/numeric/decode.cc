#include "numeric/decode.h"

#include "base/check.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/nvfp4.h"

namespace assay::numeric {
namespace {

const std::byte* row_start(const EncodedMatrix& matrix, ConstBytes bytes, int64_t row, int64_t row_bytes) {
  CHECK(row >= 0 && row < matrix.rows, "row {} of {} in {}", row, matrix.rows, matrix.name);
  CHECK(bytes.size() == static_cast<size_t>(matrix.rows * row_bytes), "{} bytes in {}", bytes.size(), matrix.name);
  return bytes.data() + row * row_bytes;
}

template <class T>
void decode_nvfp4(const EncodedMatrix& matrix, int64_t row, T* out) {
  CHECK(matrix.cols % kNvfp4Block == 0, "{} columns in {}", matrix.cols, matrix.name);
  const int64_t blocks = matrix.cols / kNvfp4Block;
  const auto* codes = reinterpret_cast<const uint8_t*>(row_start(matrix, matrix.data, row, matrix.cols / 2));
  const auto* scales = reinterpret_cast<const uint8_t*>(row_start(matrix, matrix.scales, row, blocks));
  for (int64_t column = 0; column < matrix.cols; ++column) {
    const double product = nvfp4_product(nvfp4_code(codes, column), scales[column / kNvfp4Block]);
    out[column] = static_cast<T>(product * static_cast<double>(matrix.global_scale));
  }
}

template <class T>
void decode(const EncodedMatrix& matrix, int64_t row, T* out) {
  switch (matrix.format) {
    case WeightFormat::kF32: {
      const std::byte* in = row_start(matrix, matrix.data, row, matrix.cols * 4);
      for (int64_t i = 0; i < matrix.cols; ++i) out[i] = load_unaligned<float>(in + i * 4);
      return;
    }
    case WeightFormat::kBf16: {
      const std::byte* in = row_start(matrix, matrix.data, row, matrix.cols * 2);
      for (int64_t i = 0; i < matrix.cols; ++i) out[i] = bf16_to_float(load_unaligned<Bf16>(in + i * 2));
      return;
    }
    case WeightFormat::kF16: {
      const std::byte* in = row_start(matrix, matrix.data, row, matrix.cols * 2);
      for (int64_t i = 0; i < matrix.cols; ++i) out[i] = f16_to_float(load_unaligned<F16>(in + i * 2));
      return;
    }
    case WeightFormat::kNvfp4:
      decode_nvfp4(matrix, row, out);
      return;
  }
  CHECK(false, "unknown weight format {} in {}", static_cast<int>(matrix.format), matrix.name);
}

}  // namespace

void decode_row(const EncodedMatrix& matrix, int64_t row, double* out) { decode(matrix, row, out); }
void decode_row(const EncodedMatrix& matrix, int64_t row, float* out) { decode(matrix, row, out); }

}  // namespace assay::numeric
