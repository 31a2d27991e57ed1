// The dot kernel of form kFixed (dot_order.h, "fixed blocks"): included by one kernel file each, after
// dot16_kernels.h and, in an anonymous namespace, a struct Fixed that says what an instruction set does with
//   kBlocks: fp32 lanes of a register, and blocks of a step
//   kRows: rows whose weights stay in registers for all tokens, 1 or 2
//   Bytes, Floats: a register of integers, of fp32
//   deinterleave(codes, even, odd): two registers' worth of memory; its even and its odd 32-bit words, each 128 bits of
//     the result from the same 128 bits of both
//   low_weights(codes), high_weights(codes): 2 code + 12 of each byte's low or high nibble
//   scales(codes): kBlocks valid E4M3 codes times 2^-8, block lane_block(l) in lane l
//   add_products(sums, weights, x): sums + products of bytes, added up within 32-bit lanes or within their halves
//   lane_sums<b>(sums): of each lane, times 256^b
//   fold_four(sum, out): out[r] = the sixteen lanes sum(r, s), s < kSteps, folded as dot_order.h says, r < 4
// Everything here is in an anonymous namespace too, so that each file keeps its own copy.
//
// A weight enters as the unsigned byte 2 code + 12, an activation as three signed bytes. A 32-bit lane is one block:
// four registers of weights (even columns of its first half, odd ones, then those of its second half), whose products
// with one byte of the activations add up in 16 bits at least: eight of at most 24 * 128. A token's step is twelve
// registers of bytes, byte b for weights v at 3 v + b, then one of -12 times a block's sum and one of 2^7 g.
//
// One token: row after row, prefetched far ahead in the one stream that the matrix is. More: kFixedTokens tokens and
// kDotRowBlock rows at a time, a step of columns after the other, so that the tokens' step and the sums stay in L1.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int kSteps = static_cast<int>(kDotBlock / 16) / Fixed::kBlocks;  // of kDotBlock columns
constexpr int64_t kStepColumns = Fixed::kBlocks * 16;
constexpr int64_t kRegister = sizeof(Fixed::Bytes);
constexpr int64_t kStepBytes = 14 * kRegister;
static_assert(kSteps * kStepBytes == kFixedBlockBytes);

// As Fixed::deinterleave puts the two halves of blocks into lanes.
constexpr int lane_block(int lane) { return lane % 4 / 2 * (Fixed::kBlocks / 2) + lane / 4 * 2 + lane % 2; }

// Codes with a sign and NaN, which no checkpoint should hold.
inline bool has_odd_scale(const std::byte* from) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  uint64_t odd = 0;
  for (int i = 0; i < Fixed::kBlocks; i += 8) {
    uint64_t codes;
    std::memcpy(&codes, from + i, 8);
    odd |= ((codes & (0x7f * kOnes)) + kOnes) | codes;
  }
  return (odd & (0x80 * kOnes)) != 0;
}

[[gnu::noinline]] Fixed::Floats any_scales(const std::byte* from) {
  alignas(64) float value[Fixed::kBlocks];
  for (int lane = 0; lane < Fixed::kBlocks; ++lane) {
    value[lane] = kScales.value[static_cast<uint8_t>(from[lane_block(lane)])] * 0x1p-8f;
  }
  return Fixed::load(value);
}

struct FixedWeights {
  Fixed::Bytes bytes[4];
  Fixed::Floats scales;

  FixedWeights(const std::byte* codes, const std::byte* scale_codes) {
    Fixed::Bytes half[2];
    Fixed::deinterleave(codes, half[0], half[1]);
    for (int h = 0; h < 2; ++h) {
      bytes[2 * h] = Fixed::low_weights(half[h]);
      bytes[2 * h + 1] = Fixed::high_weights(half[h]);
    }
    scales = has_odd_scale(scale_codes) ? any_scales(scale_codes) : Fixed::scales(scale_codes);
  }
};

// The step of a row that begins with column `first`. Behind the row's end activations are zero, so that the codes there
// may be any, of the next row; but their scales are made zero, since one may be a NaN.
inline FixedWeights step_weights(const DotRows& rows, int64_t row, int64_t first) {
  const std::byte* codes = rows.data + (row * rows.k + first) / 2;
  const std::byte* scales = rows.scales + (row * rows.k + first) / 16;
  const int64_t columns = rows.k - first;
  if (columns >= kStepColumns) return {codes, scales};
  std::byte last_codes[kStepColumns / 2] = {}, last_scales[Fixed::kBlocks] = {};
  if (row * rows.k + first + kStepColumns > rows.rows * rows.k) {  // no row comes behind
    std::memcpy(last_codes, codes, static_cast<size_t>(columns / 2));
    std::memcpy(last_scales, scales, static_cast<size_t>(columns / 16));
    return {last_codes, last_scales};
  }
  for (int64_t i = 0; 16 * i < columns; i += 8) {
    const int64_t blocks = columns / 16 - i;
    uint64_t eight;
    std::memcpy(&eight, scales + i, 8);
    if (blocks < 8) eight &= (uint64_t{1} << 8 * blocks) - 1;
    std::memcpy(last_scales + i, &eight, 8);
  }
  return {codes, last_scales};
}

// sums + one step with a token's step at x.
inline Fixed::Floats add_fixed(const FixedWeights& weights, const std::byte* x, Fixed::Floats sums) {
  const auto byte_sums = [&](int64_t b) {
    Fixed::Bytes products = {};
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) {
      products = Fixed::add_products(products, weights.bytes[v], Fixed::load_bytes(x + (3 * v + b) * kRegister));
    }
    asm("" : "+v"(products));  // one byte after the other: all at once they do not fit the registers
    return products;
  };
  Fixed::Bytes total = Fixed::lane_sums<2>(byte_sums(2));
  total = Fixed::add(total, Fixed::lane_sums<1>(byte_sums(1)));
  total = Fixed::add(total, Fixed::lane_sums<0>(byte_sums(0)));
  total = Fixed::add(total, Fixed::load_bytes(x + 12 * kRegister));
  const Fixed::Floats grid = Fixed::load(reinterpret_cast<const float*>(x + 13 * kRegister));
  return Fixed::add(sums, Fixed::multiply(Fixed::to_floats(total), Fixed::multiply(weights.scales, grid)));
}

// Into L2.
inline void prefetch(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// sums += a row with one token. Inlined, so that constants and sums of four rows stay in registers.
[[gnu::always_inline]] inline void fixed_row(const DotRows& rows, int64_t row, const std::byte* x, int64_t block_stride,
                                             Fixed::Floats (&sums)[kSteps]) {
  constexpr int64_t kAhead = 4096;
  const std::byte* codes = rows.data + row * rows.k / 2;
  const std::byte* scales = rows.scales + row * rows.k / 16;
  int64_t first = 0;
  for (; first + kDotBlock <= rows.k; first += kDotBlock, x += block_stride) {
    prefetch(codes + first / 2 + kAhead, kDotBlock / 2);
    if (first % 1024 == 0) __builtin_prefetch(scales + first / 16 + kAhead / 8, 0, 2);
#pragma GCC unroll 2
    for (int s = 0; s < kSteps; ++s) {
      const int64_t column = first + s * kStepColumns;
      sums[s] = add_fixed({codes + column / 2, scales + column / 16}, x + s * kStepBytes, sums[s]);
    }
  }
#pragma GCC unroll 2
  for (int s = 0; s < kSteps; ++s) {
    if (first + s * kStepColumns >= rows.k) break;
    sums[s] = add_fixed(step_weights(rows, row, first + s * kStepColumns), x + s * kStepBytes, sums[s]);
  }
}

// body<R>(first row) for all rows, kRows at a time, then one.
template <int kRows, class Body>
inline void by_rows(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) body.template operator()<kRows>(row);
  if constexpr (kRows > 1) {
    for (; row < rows; ++row) body.template operator()<1>(row);
  }
}

// out[r] for r < R <= 4; sum(r, s): the lanes of row r, of step s of each kSteps.
template <int R, class Sum>
inline void fold_steps(const Sum& sum, float* out) {
  if constexpr (R == 4) return Fixed::fold_four(sum, out);
  float folded[4];
  Fixed::fold_four([&](int r, int s) { return sum(r < R ? r : 0, s); }, folded);
  std::memcpy(out, folded, R * sizeof(float));
}

constexpr int64_t kFixedTokens = 16;

// `count` rows from `row` on with tokens.count <= kFixedTokens tokens: out[t * stride + r].
inline void fixed_tile(const DotRows& rows, int64_t row, int64_t count, const DotTokens& tokens, float* out,
                       int64_t stride) {
  alignas(64) Fixed::Floats kept[kSteps][kDotRowBlock][kFixedTokens];
  const int64_t row_bytes = rows.k / 2;
  const std::byte* next_scales = rows.scales + (row + count) * (rows.k / 16);
  for (int64_t first = 0; first < rows.k; first += kStepColumns) {
    const int64_t at = first / kDotBlock * tokens.block_stride + first % kDotBlock / kStepColumns * kStepBytes;
    // Two blocks on, or the next tile's first two.
    const int64_t ahead = kDotBlock + (first + 2 * kDotBlock < rows.k ? 0 : (count - 1) * row_bytes);
    prefetch(next_scales + first / 16 * count, count * Fixed::kBlocks);
    by_rows<Fixed::kRows>(count, [&]<int R>(int64_t r) {
      for (int64_t i = r; i < r + R; ++i) {
        prefetch(rows.data + (row + i) * row_bytes + first / 2 + ahead, kStepColumns / 2);
      }
      // Two variables, not an array: gcc would keep that in memory.
      const auto add_tokens = [&](const auto&... weights) {
        for (int64_t t = 0; t < tokens.count; ++t) {
          int64_t at_row = r;
          const auto add_row = [&](const FixedWeights& of_row) {
            Fixed::Floats& sums = kept[first % kDotBlock / kStepColumns][at_row++][t];
            sums = add_fixed(of_row, tokens.x[t] + at, first < kDotBlock ? Fixed::Floats{} : sums);
          };
          (add_row(weights), ...);
        }
      };
      if constexpr (R == 1) add_tokens(step_weights(rows, row + r, first));
      if constexpr (R == 2) add_tokens(step_weights(rows, row + r, first), step_weights(rows, row + r + 1, first));
    });
  }
  const int steps = rows.k > kStepColumns ? kSteps : 1;
  for (int64_t t = 0; t < tokens.count; ++t) {
    by_rows<4>(count, [&]<int R>(int64_t r) {
      fold_steps<R>([&](int i, int s) { return s < steps ? kept[s][r + i][t] : Fixed::Floats{}; },
                    out + t * stride + r);
    });
  }
}

void fixed_dot(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  if (tokens.count == 1) {
    by_rows<4>(rows.rows, [&]<int R>(int64_t row) {
      Fixed::Floats sums[R][kSteps] = {};
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) fixed_row(rows, row + r, tokens.x[0], tokens.block_stride, sums[r]);
      fold_steps<R>([&](int r, int s) { return sums[r][s]; }, out + row);
    });
    return;
  }
  for (int64_t t = 0; t < tokens.count; t += kFixedTokens) {
    const int64_t count = tokens.count - t < kFixedTokens ? tokens.count - t : kFixedTokens;
    const DotTokens some{tokens.form, tokens.x + t, count, tokens.block_stride};
    for (int64_t row = 0; row < rows.rows; row += kDotRowBlock) {
      const int64_t left = rows.rows - row < kDotRowBlock ? rows.rows - row : kDotRowBlock;
      fixed_tile(rows, row, left, some, out + t * stride + row, stride);
    }
  }
}

// A block of sixteen activations into its lane of a step.
inline void fix_block(const uint16_t* from, int block, std::byte* step) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
  const __m128i magnitude = _mm_set1_epi16(0x7fff);
  const __m128i largest = _mm_max_epi16(_mm_and_si128(low, magnitude), _mm_and_si128(high, magnitude));
  const int distance = _mm_extract_epi16(_mm_minpos_epu16(_mm_sub_epi16(magnitude, largest)), 0);
  const int top = 0x7fff - distance, exponent = top >= 21 << 7 ? top >> 7 : 21;  // biased by 127
  const auto power = [](int biased) { return __builtin_bit_cast(float, biased << 23); };
  const __m256 factor = _mm256_set1_ps(power(275 - exponent));  // 1 / g
  const auto widened = [](__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  __m256i half[2] = {_mm256_cvtps_epi32(_mm256_mul_ps(widened(low), factor)),
                     _mm256_cvtps_epi32(_mm256_mul_ps(widened(high), factor))};
  float grid = power(exponent - 14);
  constexpr int kInfinity = 0x7f80;
  if (top >= kInfinity) [[unlikely]] {
    const auto signs = [&](__m128i part) {
      const __m128i infinite = _mm_cmpeq_epi16(_mm_and_si128(part, magnitude), _mm_set1_epi16(kInfinity));
      const __m128i sign = _mm_or_si128(_mm_srai_epi16(part, 15), _mm_set1_epi16(1));
      return _mm256_cvtepi16_epi32(_mm_and_si128(infinite, sign));
    };
    half[0] = signs(low);
    half[1] = signs(high);
    grid = top > kInfinity ? __builtin_nanf("") : __builtin_inff();
  }
  // Biased, every byte is a digit from 0 to 255; without its top bit's weight, from -128 to 127.
  const __m256i bias = _mm256_set1_epi32(0x808080);
  const __m256i columns = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256i bytes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const int lane = block % (Fixed::kBlocks / 2) / 2 * 4 + block / (Fixed::kBlocks / 2) * 2 + block % 2;
  std::byte* to = step + 4 * lane;
  for (int h = 0; h < 2; ++h) {
    const __m256i digits = _mm256_xor_si256(_mm256_add_epi32(half[h], bias), bias);
    alignas(32) std::byte words[2][16];  // of even and odd columns: four of byte 0, 1, 2
    _mm256_store_si256(reinterpret_cast<__m256i*>(words),
                       _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(digits, columns), bytes));
    for (int b = 0; b < 3; ++b) {
      std::memcpy(to + (6 * h + b) * kRegister, words[0] + 4 * b, 4);
      std::memcpy(to + (6 * h + 3 + b) * kRegister, words[1] + 4 * b, 4);
    }
  }
  const __m256i eight = _mm256_add_epi32(half[0], half[1]);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const auto sum = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
  const uint32_t correction = -12u * sum;
  std::memcpy(to + 12 * kRegister, &correction, 4);
  std::memcpy(to + 13 * kRegister, &grid, 4);
}

// k: a multiple of 16. The last step is filled up with zeros; later ones of its block are left as they are.
void fix(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride) {
  constexpr uint16_t kZeros[16] = {};
  for (int64_t first = 0; first < k; first += kDotBlock, out += block_stride) {
    const int64_t left = k - first < kDotBlock ? k - first : kDotBlock;
    const int64_t blocks = (left + kStepColumns - 1) / kStepColumns * Fixed::kBlocks;
    for (int block = 0; block < blocks; ++block) {
      const int64_t at = first + block * 16;
      fix_block(at < k ? x + at : kZeros, block % Fixed::kBlocks, out + block / Fixed::kBlocks * kStepBytes);
    }
  }
}

}  // namespace
}  // namespace assay::ops
