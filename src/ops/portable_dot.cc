#include "ops/portable_dot.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/bytes.h"

namespace assay::ops::portable {
namespace {

using numeric::EncodedMatrix;
using numeric::WeightFormat;

// Four floats in one SSE register; the element-wise operators are the compiler's.
using Float4 [[gnu::vector_size(16)]] = float;
using Word2 [[gnu::vector_size(16)]] = uint64_t;

Float4 load4(const float* from) { return load_unaligned<Float4>(from); }
void store4(float* to, Float4 value) { std::memcpy(to, &value, sizeof(value)); }

// The sixteen lanes of one dot product: 0-3, 4-7, 8-11, 12-15.
struct Lanes {
  Float4 part[4];
};

float fold(const Lanes& lanes) {
  const Float4 four = (lanes.part[0] + lanes.part[2]) + (lanes.part[1] + lanes.part[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Adds the products of `count` columns (a multiple of 16) of one token with two rows.
void add_products(const float* row0, const float* row1, const float* token, int64_t count, Lanes& sum0, Lanes& sum1) {
  Lanes a = sum0, b = sum1;
  for (int64_t k = 0; k < count; k += kDotLanes) {
    for (int part = 0; part < 4; ++part) {
      const Float4 x = load4(token + k + part * 4);
      a.part[part] += load4(row0 + k + part * 4) * x;
      b.part[part] += load4(row1 + k + part * 4) * x;
    }
  }
  sum0 = a;
  sum1 = b;
}

constexpr std::array<float, 16> kCodes = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Both codes of a byte as two floats, the low nibble first in memory.
constexpr auto kPairs = [] {
  std::array<uint64_t, 256> pairs{};
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs[byte] = std::bit_cast<uint64_t>(std::array<float, 2>{kCodes[byte & 15], kCodes[byte >> 4]});
  }
  return pairs;
}();

constexpr auto kScales = [] {
  std::array<float, 256> scales{};
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t exponent = (code >> 3) & 15, fraction = code & 7;
    float value = static_cast<float>(exponent == 0 ? fraction : 8 + fraction) / 512.0f;  // in units of 2^-9
    for (uint32_t e = 1; e < exponent; ++e) value *= 2.0f;
    if ((code & 0x7f) == 0x7f) value = std::bit_cast<float>(0x7fc00000u);
    scales[code] = code >= 128 ? -value : value;
  }
  return scales;
}();

void decode_nvfp4(const std::byte* codes, const std::byte* scales, int64_t blocks, float* out) {
  for (int64_t block = 0; block < blocks; ++block) {
    const float value = kScales[static_cast<uint8_t>(scales[block])];
    const Float4 scale = {value, value, value, value};
    for (int part = 0; part < 4; ++part) {
      const Word2 pairs = {kPairs[static_cast<uint8_t>(codes[2 * part])],
                           kPairs[static_cast<uint8_t>(codes[2 * part + 1])]};
      store4(out + part * 4, std::bit_cast<Float4>(pairs) * scale);
    }
    codes += 8;
    out += kDotLanes;
  }
}

void decode_bf16(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(load_unaligned<uint16_t>(in + i * 2)) << 16);
  }
}

// The exponent is rebiased by a multiplication, which also normalises subnormals; infinity and NaN get the rest of the
// exponent bits afterwards.
void decode_f16(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = load_unaligned<uint16_t>(in + i * 2);
    const float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | ((bits & 0x8000u) << 16));
  }
}

}  // namespace

void decode(const WeightRow& row, int64_t first, int64_t count, float* out) {
  const EncodedMatrix& matrix = *row.matrix;
  const int64_t index = row.row * matrix.cols + first;
  switch (matrix.format) {
    case WeightFormat::kF32:
      std::memcpy(out, matrix.data.data() + index * 4, static_cast<size_t>(count) * 4);
      break;
    case WeightFormat::kBf16:
      decode_bf16(matrix.data.data() + index * 2, count, out);
      break;
    case WeightFormat::kF16:
      decode_f16(matrix.data.data() + index * 2, count, out);
      break;
    case WeightFormat::kNvfp4:
      decode_nvfp4(matrix.data.data() + index / 2, matrix.scales.data() + index / kDotLanes, count / kDotLanes, out);
      break;
  }
  for (int64_t i = count; i < dot_padded(count); ++i) out[i] = 0.0f;
}

void dot_tile(std::span<const WeightRow> rows, std::span<const float* const> tokens, int64_t k, float* out) {
  alignas(64) float weights[kRowTile][kChunk];
  Lanes sums[kTokenTile][kRowTile];
  const auto row_count = static_cast<int64_t>(rows.size());
  const auto token_count = static_cast<int64_t>(tokens.size());
  for (int64_t t = 0; t < token_count; ++t) {
    for (Lanes& lanes : sums[t]) lanes = Lanes{};
  }
  for (int64_t first = 0; first < k; first += kChunk) {
    const int64_t count = k - first < kChunk ? k - first : kChunk;
    for (int64_t r = 0; r < row_count; ++r) decode(rows[static_cast<size_t>(r)], first, count, weights[r]);
    for (int64_t t = 0; t < token_count; ++t) {
      const float* token = tokens[static_cast<size_t>(t)] + first;
      for (int64_t r = 0; r < row_count; r += 2) {
        const int64_t other =
            r + 1 < row_count ? r + 1 : r;  // an odd last row is done twice, the second time for nothing
        Lanes unused = Lanes{};
        add_products(weights[r], weights[other], token, dot_padded(count), sums[t][r],
                     other == r ? unused : sums[t][other]);
      }
    }
  }
  for (int64_t r = 0; r < row_count; ++r) {
    for (int64_t t = 0; t < token_count; ++t) out[r * kTokenTile + t] = fold(sums[t][r]);
  }
}

void widen(const device::ConstView& x, int64_t tokens, float* out) {
  cpu::with_activation(x.dtype, [&]<class T>() {
    const int64_t padded = dot_padded(x.cols);
    for (int64_t t = 0; t < tokens; ++t, out += padded) {
      const T* from = x.row<T>(t);
      for (int64_t i = 0; i < x.cols; ++i) out[i] = cpu::to_float(from[i]);
      for (int64_t i = x.cols; i < padded; ++i) out[i] = 0.0f;
    }
  });
}

}  // namespace assay::ops::portable
