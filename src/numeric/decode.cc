#include "numeric/decode.h"

#include <array>

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

constexpr std::array<double, 16> kE2m1Values = [] {
  std::array<double, 16> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = e2m1_to_float(static_cast<uint8_t>(code));
  return values;
}();

// nvfp4_value() of a row: code and scale multiply exactly in fp64 too.
template <class T>
void decode_nvfp4(const EncodedMatrix& matrix, int64_t row, T* out) {
  CHECK(matrix.cols % kNvfp4Block == 0, "{} columns in {}", matrix.cols, matrix.name);
  const int64_t blocks = matrix.cols / kNvfp4Block;
  const auto* codes = reinterpret_cast<const uint8_t*>(row_start(matrix, matrix.data, row, matrix.cols / 2));
  const auto* scales = reinterpret_cast<const uint8_t*>(row_start(matrix, matrix.scales, row, blocks));
  const double global_scale = matrix.global_scale;
  for (int64_t block = 0; block < blocks; ++block) {
    const double scale = e4m3_to_float(scales[block]);
    for (int64_t i = block * kNvfp4Block; i < (block + 1) * kNvfp4Block; ++i) {
      out[i] = static_cast<T>(kE2m1Values[nvfp4_code(codes, i)] * scale * global_scale);
    }
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
