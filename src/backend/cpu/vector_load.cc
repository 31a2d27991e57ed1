#include "backend/cpu/vector_load.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace assay::cpu {
namespace {

float half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float fraction = static_cast<float>(bits & 1023);
  float magnitude = std::ldexp(exponent == 0 ? fraction : 1024.0f + fraction, exponent == 0 ? -24 : exponent - 25);
  if (exponent == 31) magnitude = (bits & 1023) != 0 ? NAN : INFINITY;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
T read(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

Result<std::vector<float>> load_vector(const numeric::EncodedMatrix& matrix, int64_t rows, int64_t cols) {
  using numeric::WeightFormat;
  const std::string found = fmt::format("[{}, {}] {}", matrix.rows, matrix.cols, weight_format_name(matrix.format));
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  const size_t element = matrix.format == WeightFormat::kF32 ? 4 : 2;
  if (matrix.rows != rows || matrix.cols != cols || matrix.format == WeightFormat::kNvfp4 ||
      matrix.data.size() != count * element) {
    return Error{ErrorKind::kCheckpoint,
                 "wrong size or format of a small weight",
                 matrix.name,
                 found,
                 fmt::format("[{}, {}] of f32, bf16 or f16", rows, cols),
                 ""};
  }
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<int64_t>(i);
    switch (matrix.format) {
      case WeightFormat::kF32:
        values[i] = read<float>(matrix.data.data(), index);
        break;
      case WeightFormat::kBf16:
        values[i] = std::bit_cast<float>(static_cast<uint32_t>(read<uint16_t>(matrix.data.data(), index)) << 16);
        break;
      case WeightFormat::kF16:
        values[i] = half_value(read<uint16_t>(matrix.data.data(), index));
        break;
      case WeightFormat::kNvfp4:
        break;
    }
  }
  return values;
}

}  // namespace assay::cpu
