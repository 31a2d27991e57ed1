// Weights packed for mma.sync m16n8k16 with the weights as the 16-row operand, so that a warp reads contiguous bytes.
//
// A matrix [rows, K] is cut into tiles of 16 rows, a tile into chunks of 128 inputs; both are padded with zeros. Lane l
// (g = l / 4, t = l % 4) owns rows g and g + 8 and, of each 32 inputs j = 0..3 of a chunk, inputs 32 j + 8 t + 0..7:
// the order of k within a chunk is free as long as activations follow it.
//   bf16   4096 bytes a chunk: [j][row half][lane] 16 bytes = the eight inputs
//   nvfp4  1024 bytes of codes: [row half][lane] 16 bytes = 4 words, word j the eight inputs of j, as tile_code_bit()
//          says; then 128 bytes of scales: [g][t / 2][row half][j], as tile_scale() says
// A negative block scale is packed as its magnitude with the signs of its codes flipped: the same products. A zero
// scale is packed as zero codes.
#pragma once

#include "ops/weight.h"

namespace assay::ops {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileChunk = 128;

constexpr int64_t tile_chunks(int64_t k) { return (k + kTileChunk - 1) / kTileChunk; }
constexpr int64_t tile_chunk_bytes(numeric::WeightFormat format) {
  return format == numeric::WeightFormat::kNvfp4 ? 1152 : 4096;
}
constexpr int64_t tile_bytes(numeric::WeightFormat format, int64_t k) {
  return tile_chunks(k) * tile_chunk_bytes(format);
}
constexpr bool tile_format(numeric::WeightFormat format) {
  return format == numeric::WeightFormat::kNvfp4 || format == numeric::WeightFormat::kBf16;
}

// Where bit `bit` (3: the sign) of the code of input 2 * pair + odd lies in its word. Turned right by kTileTurns[pair]
// a word holds that pair's signs at bits 15 and 31 and magnitudes at bits 8..6 and 24..22, the low bits of a bf16's
// exponent and the top of its mantissa; the lowest bits of pair 3 alone lie two below where they belong.
constexpr int tile_turn(int pair) { return 0x061A0400 >> 8 * pair & 31; }  // 0, 4, 26, 6
constexpr int tile_code_bit(int pair, int odd, int bit) {
  if (pair == 3 && bit == 0) return 16 * odd + 4;
  const int place = 16 * odd + (bit == 3 ? 15 : 6 + bit);
  return (place + tile_turn(pair)) % 32;
}

// A block scale above zero as 1.mmm * 2^(eeeee - 10), eeeeemmm: no subnormals, so that decoding is an addition.
constexpr uint8_t tile_scale(uint8_t e4m3) {
  int exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
  if (exponent > 0) return static_cast<uint8_t>((exponent + 3) << 3 | mantissa);
  for (exponent = 4; mantissa < 8; mantissa *= 2) --exponent;
  return static_cast<uint8_t>(exponent << 3 | (mantissa & 7));
}

// linear: the shards' rows one below the other, [tile][chunk]; then, 256-byte aligned, F32 [rows padded to 16], the
// factor of each row's finished sum (nvfp4: global scale * 2^7, see tile_dot_cuda.cuh; else 1).
extern const Layout kCudaTileLayout;
std::vector<float> tile_factors(const WeightSource& source);
// Where the factors start.
constexpr int64_t tile_factor_offset(numeric::WeightFormat format, int64_t rows, int64_t k) {
  return ((rows + kTileRows - 1) / kTileRows * tile_bytes(format, k) + 255) / 256 * 256;
}

// linear of bf16: kCudaTileLayout's bytes; then, 256-byte aligned, the rows [rows, K] as the file has them, for a
// library that reads plain matrices.
extern const Layout kCudaTileAndRowsLayout;
constexpr int64_t tile_rows_offset(numeric::WeightFormat format, int64_t rows, int64_t k) {
  const int64_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows;
  return (tile_factor_offset(format, rows, k) + padded * 4 + 255) / 256 * 256;
}

// experts: per expert I / 8 tiles whose rows g are gate row 8 i + g and rows g + 8 up row 8 i + g, then hidden / 16
// tiles of down; after all experts F32 [experts][3], the factors of gate, up and down.
extern const Layout kCudaExpertTileLayout;
std::vector<float> expert_factors(const WeightSource& source);
struct ExpertTiles {
  int64_t gate_up_bytes = 0;  // of one expert
  int64_t down_bytes = 0;
  int64_t factors = 0;  // offset
  constexpr ExpertTiles(numeric::WeightFormat format, int64_t experts, int64_t hidden, int64_t intermediate)
      : gate_up_bytes(intermediate / 8 * tile_bytes(format, hidden)),
        down_bytes(hidden / kTileRows * tile_bytes(format, intermediate)),
        factors(experts * (gate_up_bytes + down_bytes)) {}
};

// What packing either says of a matrix with such a block scale.
Error scale_is_not_a_number(const numeric::EncodedMatrix& matrix);

}  // namespace assay::ops
