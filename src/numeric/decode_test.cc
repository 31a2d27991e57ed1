#include "numeric/decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/nvfp4.h"

namespace assay::numeric {
namespace {

// Places elements at an odd address, as files do.
template <class T>
std::vector<std::byte> shifted_bytes(const std::vector<T>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(T) + 1);
  std::memcpy(bytes.data() + 1, elements.data(), elements.size() * sizeof(T));
  return bytes;
}

void expect_rows(const EncodedMatrix& matrix, const std::vector<float>& expected) {
  std::vector<float> as_float(matrix.cols);
  std::vector<double> as_double(matrix.cols);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    decode_row(matrix, row, as_float.data());
    decode_row(matrix, row, as_double.data());
    for (int64_t i = 0; i < matrix.cols; ++i) {
      EXPECT_EQ(as_float[i], expected[row * matrix.cols + i]);
      EXPECT_EQ(as_double[i], expected[row * matrix.cols + i]);
    }
  }
}

TEST(DecodeRow, PlainFormatsAtAnyAddress) {
  const std::vector<float> values = {1.5f, -2, 0.25f, 3, 1e-7f, -65504};
  std::vector<Bf16> bf16;
  std::vector<F16> f16;
  std::vector<float> rounded_bf16, rounded_f16;
  for (float value : values) {
    bf16.push_back(bf16_from_float(value));
    f16.push_back(f16_from_float(value));
    rounded_bf16.push_back(round_bf16(value));
    rounded_f16.push_back(round_f16(value));
  }
  const auto check = [](WeightFormat format, const std::vector<std::byte>& bytes, const std::vector<float>& expected) {
    EncodedMatrix matrix;
    matrix.name = "m";
    matrix.format = format;
    matrix.rows = 2;
    matrix.cols = 3;
    matrix.data = ConstBytes(bytes).subspan(1);
    expect_rows(matrix, expected);
  };
  check(WeightFormat::kF32, shifted_bytes(values), values);
  check(WeightFormat::kBf16, shifted_bytes(bf16), rounded_bf16);
  check(WeightFormat::kF16, shifted_bytes(f16), rounded_f16);
}

TEST(DecodeRow, Nvfp4IsExactInDoubleAndRoundedOnceInFloat) {
  const int64_t rows = 2, cols = 32;
  std::vector<float> values(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    values[i] = std::sin(0.7f * static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(-i / kNvfp4Block));
  }
  const Nvfp4Matrix owner = nvfp4_quantise(values.data(), rows, cols);
  for (size_t block = 1; block < owner.scales.size(); ++block) {
    ASSERT_NE(owner.scales[block], owner.scales[block - 1]);  // else a scale of the wrong block would go unseen
  }
  const EncodedMatrix matrix = owner.view("m", 0.5f);
  EXPECT_EQ(matrix.input_scale, 0.5f);
  std::vector<float> as_float(cols);
  std::vector<double> as_double(cols);
  for (int64_t row = 0; row < rows; ++row) {
    decode_row(matrix, row, as_float.data());
    decode_row(matrix, row, as_double.data());
    for (int64_t i = 0; i < cols; ++i) {
      const int64_t at = row * cols + i;
      const uint8_t code = i % 2 == 0 ? owner.codes[at / 2] & 15 : owner.codes[at / 2] >> 4;
      const long double exact = static_cast<long double>(e2m1_to_float(code)) * e4m3_to_float(owner.scales[at / 16]) *
                                static_cast<long double>(owner.global_scale);
      EXPECT_EQ(static_cast<long double>(as_double[i]), exact);
      EXPECT_EQ(as_float[i], static_cast<float>(exact));
      // Within half the widest step of the grid (between 4 and 6): one block step.
      EXPECT_LE(std::fabs(as_float[i] - values[at]),
                1.001f * e4m3_to_float(owner.scales[at / 16]) * owner.global_scale);
    }
  }
}

}  // namespace
}  // namespace assay::numeric
