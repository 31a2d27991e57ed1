// What the cpu_portable rows that multiply by weights share: decoding and dot products in plain C++ for any x86-64 (or
// other) CPU. Weights are read from the checkpoint bytes in the file layout: codes and 16-bit values decode at full
// speed from any alignment, so a packed copy would only cost memory.
//
// Rows are decoded once, kRowTile rows and kChunk columns at a time (in L1), for up to kTokenTile tokens: to integers
// where dot_order.h has fixed blocks, else to fp32. bf16 rows of few tokens are widened in registers instead.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/convert.h"
#include "device/view.h"
#include "numeric/weight_format.h"
#include "ops/dot_order.h"

namespace assay::ops::portable {

inline constexpr int64_t kRowTile = 4;
inline constexpr int64_t kTokenTile = 32;
inline constexpr int64_t kChunk = 512;  // columns; a multiple of kDotLanes

// Fewest multiply-adds worth a thread of their own: handing over a piece takes a few microseconds.
inline constexpr int64_t kMacsPerPiece = 50'000;

// Columns [first, first + count) of a row as fp32, NVFP4 without the global scale (exact). Then zeros up to a multiple
// of kDotLanes. first: a multiple of kDotLanes.
void decode(const numeric::EncodedMatrix& matrix, int64_t row, int64_t first, int64_t count, float* out);

// The global scale of a matrix, 1 where the format has none.
inline float global_scale(const numeric::EncodedMatrix& matrix) {
  return matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
}

inline constexpr int64_t kFixedGroup = 4;
constexpr int64_t fixed_groups(int64_t k) { return (k / kDotLanes + kFixedGroup - 1) / kFixedGroup; }

// Four blocks of sixteen activations in fixed point, q = 2048 high + low; zeros behind the last block of a token.
struct FixedBlocks {
  int16_t low[kFixedGroup][kDotLanes];
  int16_t high[kFixedGroup][kDotLanes];
  float half_grid[kFixedGroup];
};

// Activations as dot_rows wants them: fixed blocks, or dot_padded(k) floats, zero from k on.
struct Tokens {
  bool fixed;
  int64_t k;

  Tokens(numeric::WeightFormat format, DType activation, int64_t columns)
      : fixed(dot_fixed(format, activation)), k(columns) {}
  int64_t bytes() const {
    return fixed ? fixed_groups(k) * static_cast<int64_t>(sizeof(FixedBlocks))
                 : dot_padded(k) * static_cast<int64_t>(sizeof(float));
  }
  size_t bytes(int64_t tokens) const { return static_cast<size_t>(tokens * bytes()); }
  // All rows of x, one after the other.
  void prepare(const device::ConstView& x, int64_t tokens, std::byte* out) const;
};

// out[t * stride + r] = dot(row first + r, tokens[t]) * global scale, for r < rows. At most kTokenTile tokens.
void dot_rows(const numeric::EncodedMatrix& matrix, const Tokens& form, int64_t first, int64_t rows,
              std::span<const std::byte* const> tokens, float* out, int64_t stride);

// At least one row a piece.
inline int64_t row_grain(int64_t macs_per_row) {
  return macs_per_row >= kMacsPerPiece ? 1 : kMacsPerPiece / macs_per_row;
}

}  // namespace assay::ops::portable
