#include "numeric/nvfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "numeric/bf16.h"
#include "numeric/f16.h"

namespace assay::numeric {
namespace {

TEST(Nvfp4, EveryProductIsExactInEachFloatFormat) {
  int products = 0;
  int inexact = 0;
  for (int scale = 0; scale < 256; ++scale) {
    if (e4m3_is_nan(static_cast<uint8_t>(scale))) continue;
    for (int code = 0; code < 16; ++code) {
      const double exact = static_cast<double>(e2m1_to_float(static_cast<uint8_t>(code))) *
                           static_cast<double>(e4m3_to_float(static_cast<uint8_t>(scale)));
      const float product = nvfp4_product(static_cast<uint8_t>(code), static_cast<uint8_t>(scale));
      ++products;
      inexact += product != exact || round_bf16(product) != exact || round_f16(product) != exact;
    }
  }
  EXPECT_EQ(products, 254 * 16);
  EXPECT_EQ(inexact, 0);
}

TEST(Nvfp4, ScaleZeroGivesZeroAndScaleNanGivesNan) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(nvfp4_value(static_cast<uint8_t>(code), 0x00, 3.0f), 0.0f);
    EXPECT_TRUE(std::isnan(nvfp4_value(static_cast<uint8_t>(code), 0x7F, 3.0f)));
  }
}

// The worked row of the format's specification.
TEST(Nvfp4, QuantisesTheWorkedRow) {
  std::vector<float> row(32);
  for (int i = 0; i < 32; ++i) row[i] = static_cast<float>((i - 13) * 0.021 * (i % 3 != 0 ? 1 : -1.7));
  const Nvfp4Matrix matrix = nvfp4_quantise(row.data(), 1, 32);
  EXPECT_FLOAT_EQ(matrix.global_scale, 2.2578125e-4f);
  EXPECT_EQ(matrix.scales, (std::vector<uint8_t>{0x7B, 0x7E}));
  EXPECT_EQ(matrix.codes, (std::vector<uint8_t>{0xD7, 0x6D, 0xCC, 0xB5, 0x4B, 0x9A, 0x01, 0xA1,  //
                                                0x21, 0x2C, 0xD3, 0x44, 0x4E, 0xE5, 0x55, 0x6F}));
}

TEST(Nvfp4, LowNibbleHoldsTheEvenElement) {
  const uint8_t packed[2] = {0x21, 0xF8};
  EXPECT_EQ(nvfp4_code(packed, 0), 1);
  EXPECT_EQ(nvfp4_code(packed, 1), 2);
  EXPECT_EQ(nvfp4_code(packed, 2), 8);
  EXPECT_EQ(nvfp4_code(packed, 3), 15);
}

// Values on the grid come back exactly; each block carries a different scale.
TEST(Nvfp4, ValuesOnTheGridSurvive) {
  const int64_t rows = 3, cols = 64;
  std::vector<float> values(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float scale = std::ldexp(1.0f, static_cast<int>(i / 16 % 7));
    values[i] = e2m1_to_float(static_cast<uint8_t>(i % 16)) * scale;  // holds +-6, so the block's scale is found again
  }
  values[0] = 2688.0f;  // global scale 1
  for (int i = 1; i < 16; ++i) values[i] = 448.0f * e2m1_to_float(static_cast<uint8_t>(i));
  const Nvfp4Matrix matrix = nvfp4_quantise(values.data(), rows, cols);
  EXPECT_EQ(matrix.global_scale, 1.0f);
  std::vector<float> decoded(cols);
  for (int64_t row = 0; row < rows; ++row) {
    nvfp4_dequantise_row(matrix.codes.data() + row * cols / 2, matrix.scales.data() + row * cols / 16, 1.0f, cols,
                         decoded.data());
    for (int64_t i = 0; i < cols; ++i) EXPECT_EQ(decoded[i], values[row * cols + i]) << row << " " << i;
  }
}

TEST(Nvfp4, ZeroAndTinyBlocksKeepAUsableScale) {
  std::vector<float> values(48, 0.0f);
  values[0] = 1000.0f;
  values[32] = 1e-6f;  // amax / (6 global) far below 2^-9: clamped up to it
  const Nvfp4Matrix matrix = nvfp4_quantise(values.data(), 1, 48);
  EXPECT_EQ(matrix.scales, (std::vector<uint8_t>{0x7E, 0x38, 0x01}));
  const std::vector<float> zeros(16, 0.0f);
  const Nvfp4Matrix zero = nvfp4_quantise(zeros.data(), 1, 16);
  EXPECT_EQ(zero.global_scale, 1.0f);
  EXPECT_EQ(zero.scales[0], 0x38);
  for (uint8_t byte : zero.codes) EXPECT_EQ(byte, 0);
}

TEST(Nvfp4, QuantisesActivations) {
  std::array<float, 16> values{};
  for (int i = 0; i < 16; ++i) values[i] = e2m1_to_float(static_cast<uint8_t>(i)) * 0.25f;
  std::array<uint8_t, 8> packed{};
  // input_scale 1/8: g = 8, amax 1.5, s = 2, step s * input_scale = 0.25.
  EXPECT_EQ(nvfp4_quantise_activation_block(values.data(), 0.125f, packed.data()), e4m3_from_float(2.0f));
  EXPECT_EQ(packed, (std::array<uint8_t, 8>{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE}));
}

TEST(Nvfp4, ActivationBlocksOfZeroAndBeyondTheRange) {
  std::array<float, 16> values{};
  std::array<uint8_t, 8> packed;
  packed.fill(0xAA);
  EXPECT_EQ(nvfp4_quantise_activation_block(values.data(), 0.5f, packed.data()), 0);
  for (uint8_t byte : packed) EXPECT_EQ(byte, 0);
  values[0] = -1e30f;
  values[1] = 448.0f * 0.5f;
  EXPECT_EQ(nvfp4_quantise_activation_block(values.data(), 0.5f, packed.data()), 0x7E);
  EXPECT_EQ(packed[0], 0x2F);  // -6 and 1: saturated, and the other element keeps its value
}

constexpr uint8_t code_of_first(float value) {
  float values[16] = {value};
  uint8_t packed[8] = {};
  nvfp4_quantise_activation_block(values, 1.0f / 2688.0f, packed);
  return nvfp4_code(packed, 0);
}
static_assert(code_of_first(1.0f) == 7);  // usable at compile time

}  // namespace
}  // namespace assay::numeric
