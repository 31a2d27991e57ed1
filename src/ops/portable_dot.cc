#include "ops/portable_dot.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/lanes.h"
#include "base/bytes.h"

namespace assay::ops::portable {
namespace {

using numeric::EncodedMatrix;
using numeric::WeightFormat;

using cpu::F4;
using cpu::F8;
using cpu::I4;
using Word2 [[gnu::vector_size(16)]] = uint64_t;

constexpr int64_t kDirectTokens = 4;  // up to these, widening bf16 again for each costs less than a decoded copy

// A bf16 weight at any address.
struct StoredBf16 {
  std::byte bytes[2];
};

F8 load8(const float* from) { return cpu::load8(from); }
F8 load8(const StoredBf16* from) { return cpu::widen_bf16(load_unaligned<cpu::U16x8>(from->bytes)); }

// The sixteen lanes of one dot product: 0-7, 8-15.
struct Lanes {
  F8 part[2] = {};
};

float fold(const Lanes& lanes) {
  return cpu::add_lanes({lanes.part[0].low + lanes.part[1].low, lanes.part[0].high + lanes.part[1].high});
}

// Adds the products of `count` columns (a multiple of 16) of one token with R rows that are `stride` elements apart.
template <int R, class Weight>
void add_products(const Weight* rows, int64_t stride, const float* token, int64_t count, Lanes* sums) {
  Lanes sum[R];
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) sum[r] = sums[r];
  for (int64_t k = 0; k < count; k += kDotLanes) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      const F8 x = load8(token + k + 8 * part);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const F8 weight = load8(rows + r * stride + k + 8 * part);
        sum[r].part[part].low += weight.low * x.low;
        sum[r].part[part].high += weight.high * x.high;
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) sums[r] = sum[r];
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
    for (int part = 0; part < 4; ++part) {
      const Word2 pairs = {kPairs[static_cast<uint8_t>(codes[2 * part])],
                           kPairs[static_cast<uint8_t>(codes[2 * part + 1])]};
      cpu::store4(out + part * 4, std::bit_cast<F4>(pairs) * value);
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

// Twice a code, of both codes of a byte, the low nibble first in memory.
constexpr auto kIntegerPairs = [] {
  std::array<uint32_t, 256> pairs{};
  const auto twice = [](size_t nibble) { return static_cast<int16_t>(2 * kCodes[nibble]); };
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs[byte] = std::bit_cast<uint32_t>(std::array<int16_t, 2>{twice(byte & 15), twice(byte >> 4)});
  }
  return pairs;
}();

// A row's weights in blocks of sixteen, four blocks together; zeros behind the last.
struct IntegerRow {
  int16_t weights[kChunk];
  float scales[kChunk / kDotLanes];

  void decode(const EncodedMatrix& matrix, int64_t row, int64_t first, int64_t blocks) {
    const int64_t index = row * matrix.cols + first;
    const std::byte* codes = matrix.data.data() + index / 2;
    const std::byte* scale = matrix.scales.data() + index / kDotLanes;
    for (int64_t i = 0; i < blocks * kDotLanes / 2; ++i) {
      std::memcpy(weights + 2 * i, &kIntegerPairs[static_cast<uint8_t>(codes[i])], sizeof(uint32_t));
    }
    for (int64_t b = 0; b < blocks; ++b) scales[b] = kScales[static_cast<uint8_t>(scale[b])];
    for (int64_t b = blocks; b % kFixedGroup != 0; ++b) {
      std::fill_n(weights + b * kDotLanes, kDotLanes, int16_t{0});
      scales[b] = 0;
    }
  }
};

using I16x8 [[gnu::vector_size(16)]] = int16_t;

// Lane l: the products of elements 2 l and 2 l + 1, added.
I4 multiply_pairs(const int16_t* a, const int16_t* b) {
  const auto x = load_unaligned<I16x8>(a), y = load_unaligned<I16x8>(b);
#if defined(__SSE2__)
  return reinterpret_cast<I4>(_mm_madd_epi16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
#else
  I4 sums;
  for (int l = 0; l < 4; ++l) sums[l] = x[2 * l] * y[2 * l] + x[2 * l + 1] * y[2 * l + 1];
  return sums;
#endif
}

// The sums of four blocks, one a lane.
F4 dot_blocks(const int16_t* weights, const FixedBlocks& x) {
  I4 sums[kFixedGroup];
#pragma GCC unroll 4
  for (int b = 0; b < kFixedGroup; ++b) {
    const int16_t* block = weights + b * kDotLanes;
    const I4 high = multiply_pairs(block, x.high[b]) + multiply_pairs(block + 8, x.high[b] + 8);
    const I4 low = multiply_pairs(block, x.low[b]) + multiply_pairs(block + 8, x.low[b] + 8);
    sums[b] = (high << 11) + low;
  }
  const auto half = [](I4 a, I4 b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  const I4 front = half(sums[0], sums[1]), back = half(sums[2], sums[3]);
  return __builtin_convertvector(
      __builtin_shufflevector(front, back, 0, 1, 4, 5) + __builtin_shufflevector(front, back, 2, 3, 6, 7), F4);
}

// One row with tokens of fixed blocks: out[t * stride].
void dot_fixed_row(const EncodedMatrix& matrix, int64_t row, std::span<const std::byte* const> tokens, float* out,
                   int64_t stride) {
  IntegerRow weights;
  F4 sums[kTokenTile][kFixedGroup];  // block b in lane b modulo 16
  for (size_t t = 0; t < tokens.size(); ++t) std::fill_n(sums[t], kFixedGroup, F4{});
  for (int64_t first = 0; first < matrix.cols; first += kChunk) {
    const int64_t blocks = std::min(kChunk, matrix.cols - first) / kDotLanes;
    weights.decode(matrix, row, first, blocks);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const auto* x = reinterpret_cast<const FixedBlocks*>(tokens[t]) + first / kDotLanes / kFixedGroup;
      for (int64_t b = 0; b < blocks; b += kFixedGroup, ++x) {
        sums[t][b / kFixedGroup % kFixedGroup] += dot_blocks(weights.weights + b * kDotLanes, *x) *
                                                  (cpu::load4(weights.scales + b) * cpu::load4(x->half_grid));
      }
    }
  }
  const float scale = global_scale(matrix);
  for (size_t t = 0; t < tokens.size(); ++t, out += stride) {
    *out = fold({{{sums[t][0], sums[t][1]}, {sums[t][2], sums[t][3]}}}) * scale;
  }
}

// q = round(x / g), and g: dot_order.h.
template <class T>
void fix_block(const T* x, FixedBlocks& blocks, int64_t b) {
  int16_t *high = blocks.high[b], *low = blocks.low[b];
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest = 0;
  bool nan = false;
  for (int i = 0; i < 16; ++i) {
    const float magnitude = std::abs(cpu::to_float(x[i]));
    nan |= std::isnan(magnitude);
    largest = std::max(largest, magnitude);
  }
  if (nan || largest == kInfinity) {
    for (int i = 0; i < 16; ++i) {
      const float value = cpu::to_float(x[i]);
      high[i] = 0;
      low[i] = static_cast<int16_t>(value == kInfinity ? 1 : value == -kInfinity ? -1 : 0);
    }
    blocks.half_grid[b] = nan ? std::numeric_limits<float>::quiet_NaN() : kInfinity;
    return;
  }
  const double grid = fixed_grid(largest);
  const auto inverse = static_cast<float>(1 / grid);
  for (int i = 0; i < 16; ++i) {
    const auto q = static_cast<int32_t>(std::lrint(cpu::to_float(x[i]) * inverse));
    high[i] = static_cast<int16_t>(q >> 11);
    low[i] = static_cast<int16_t>(q & 2047);
  }
  blocks.half_grid[b] = static_cast<float>(grid / 2);
}

template <class T>
void widen(const T* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = cpu::to_float(x[i]);
  for (int64_t i = k; i < dot_padded(k); ++i) out[i] = 0.0f;
}

const float* floats(const std::byte* token) { return reinterpret_cast<const float*>(token); }

// R rows of bf16 from `row` on with each token: out[t * stride + r].
template <int R>
void dot_bf16(const EncodedMatrix& matrix, int64_t row, std::span<const std::byte* const> tokens, float* out,
              int64_t stride) {
  const int64_t k = matrix.cols, whole = k / kDotLanes * kDotLanes;
  const auto* rows = reinterpret_cast<const StoredBf16*>(matrix.data.data()) + row * k;
  for (const std::byte* prepared : tokens) {
    const float* token = floats(prepared);
    Lanes sums[R];
    add_products<R>(rows, k, token, whole, sums);
    if (whole < k) {
      StoredBf16 rest[R * kDotLanes] = {};
      for (int r = 0; r < R; ++r) std::copy_n(rows + r * k + whole, k - whole, rest + r * kDotLanes);
      add_products<R>(rest, kDotLanes, token + whole, kDotLanes, sums);
    }
    for (int r = 0; r < R; ++r) out[r] = fold(sums[r]);
    out += stride;
  }
}

// Up to kRowTile rows from `row` on, decoded once: out[t * stride + r].
void dot_decoded(const EncodedMatrix& matrix, int64_t row, int64_t rows, std::span<const std::byte* const> tokens,
                 float* out, int64_t stride) {
  alignas(64) float weights[kRowTile * kChunk];
  Lanes sums[kTokenTile][kRowTile];
  const auto token_count = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < matrix.cols; first += kChunk) {
    const int64_t count = std::min(kChunk, matrix.cols - first), padded = dot_padded(count);
    for (int64_t r = 0; r < rows; ++r) decode(matrix, row + r, first, count, weights + r * kChunk);
    for (int64_t t = 0; t < token_count; ++t) {
      const float* token = floats(tokens[static_cast<size_t>(t)]) + first;
      int64_t r = 0;
      for (; r + 2 <= rows; r += 2) add_products<2>(weights + r * kChunk, kChunk, token, padded, sums[t] + r);
      if (r < rows) add_products<1>(weights + r * kChunk, kChunk, token, padded, sums[t] + r);
    }
  }
  const float scale = global_scale(matrix);
  for (int64_t t = 0; t < token_count; ++t) {
    for (int64_t r = 0; r < rows; ++r) out[t * stride + r] = fold(sums[t][r]) * scale;
  }
}

}  // namespace

void decode(const EncodedMatrix& matrix, int64_t row, int64_t first, int64_t count, float* out) {
  const int64_t index = row * matrix.cols + first;
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

void Tokens::prepare(const device::ConstView& x, int64_t tokens, std::byte* out) const {
  cpu::with_activation(x.dtype, [&]<class T>() {
    for (int64_t t = 0; t < tokens; ++t, out += bytes()) {
      const T* from = x.row<T>(t);
      if (!fixed) {
        widen(from, k, reinterpret_cast<float*>(out));
        continue;
      }
      auto* blocks = reinterpret_cast<FixedBlocks*>(out);
      blocks[fixed_groups(k) - 1] = {};
      for (int64_t b = 0; b < k / kDotLanes; ++b) {
        fix_block(from + b * kDotLanes, blocks[b / kFixedGroup], b % kFixedGroup);
      }
    }
  });
}

void dot_rows(const EncodedMatrix& matrix, const Tokens& form, int64_t first, int64_t rows,
              std::span<const std::byte* const> tokens, float* out, int64_t stride) {
  int64_t r = 0;
  if (form.fixed) {
    for (; r < rows; ++r) dot_fixed_row(matrix, first + r, tokens, out + r, stride);
  } else if (matrix.format == WeightFormat::kBf16 && static_cast<int64_t>(tokens.size()) <= kDirectTokens) {
    for (; r + 2 <= rows; r += 2) dot_bf16<2>(matrix, first + r, tokens, out + r, stride);
    if (r < rows) dot_bf16<1>(matrix, first + r, tokens, out + r, stride);
  } else {
    for (; r < rows; r += kRowTile) {
      dot_decoded(matrix, first + r, std::min(kRowTile, rows - r), tokens, out + r, stride);
    }
  }
}

}  // namespace assay::ops::portable
