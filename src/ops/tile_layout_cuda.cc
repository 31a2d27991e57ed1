#include "ops/tile_layout_cuda.h"

#include <array>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "numeric/e4m3.h"
#include "numeric/nvfp4.h"

namespace assay::ops {
namespace {

using numeric::EncodedMatrix;
using numeric::WeightFormat;

struct SourceRow {
  const EncodedMatrix* matrix = nullptr;  // null: a row of zeros
  int64_t row = 0;
};
using RowOf = std::function<SourceRow(int)>;  // of the 16 rows of a tile

// Eight bf16 inputs from column k on, zeros past the end.
void pack_bf16(const SourceRow& from, int64_t k, std::byte* out) {
  if (from.matrix == nullptr || k >= from.matrix->cols) return;
  const int64_t count = std::min<int64_t>(8, from.matrix->cols - k);
  std::memcpy(out, from.matrix->data.data() + (from.row * from.matrix->cols + k) * 2, static_cast<size_t>(count * 2));
}

uint8_t scale_at(const SourceRow& from, int64_t k) {
  const int64_t blocks = from.matrix->cols / numeric::kNvfp4Block;
  return static_cast<uint8_t>(from.matrix->scales[static_cast<size_t>(from.row * blocks + k / numeric::kNvfp4Block)]);
}

// What each code of each of a word's eight inputs sets in it.
constexpr auto kCodeBits = [] {
  std::array<std::array<uint32_t, 16>, 8> bits{};
  for (int input = 0; input < 8; ++input) {
    for (uint32_t code = 0; code < 16; ++code) {
      for (int bit = 0; bit < 4; ++bit) {
        bits[static_cast<size_t>(input)][code] |= (code >> bit & 1u) << tile_code_bit(input / 2, input % 2, bit);
      }
    }
  }
  return bits;
}();

uint32_t pack_codes(const SourceRow& from, int64_t k) {
  if (from.matrix == nullptr || k >= from.matrix->cols) return 0;
  const auto* codes = reinterpret_cast<const uint8_t*>(from.matrix->data.data()) + from.row * (from.matrix->cols / 2);
  const uint8_t scale = scale_at(from, k);
  if ((scale & 0x7F) == 0) return 0;
  const uint32_t flip = scale >> 7 << 3;
  uint32_t word = 0;
  for (size_t i = 0; i < 8; ++i) {
    word |= kCodeBits[i][numeric::nvfp4_code(codes, k + static_cast<int64_t>(i)) ^ flip];
  }
  return word;
}

Result<void> pack_scale(const SourceRow& from, int64_t k, std::byte* out) {
  if (from.matrix == nullptr || k >= from.matrix->cols) return {};
  const uint8_t scale = scale_at(from, k) & 0x7F;
  if (numeric::e4m3_is_nan(scale)) {
    return scale_is_not_a_number(*from.matrix);
  }
  if (scale != 0) *out = static_cast<std::byte>(tile_scale(scale));
  return {};
}

// One chunk of a tile, zeroed before.
Result<void> pack_chunk(WeightFormat format, const SourceRow (&rows)[kTileRows], int64_t k, std::byte* out) {
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const SourceRow& row = rows[g + 8 * half];
      for (int j = 0; j < 4; ++j) {
        const int64_t column = k + 32 * j + 8 * t;
        if (format == WeightFormat::kBf16) {
          pack_bf16(row, column, out + ((j * 2 + half) * 32 + lane) * 16);
          continue;
        }
        const uint32_t word = pack_codes(row, column);
        std::memcpy(out + (half * 32 + lane) * 16 + j * 4, &word, 4);
        if (t % 2 == 0) {
          ASSAY_TRY(pack_scale(row, column, out + 1024 + ((g * 2 + t / 2) * 2 + half) * 4 + j));
        }
      }
    }
  }
  return {};
}

Result<void> pack_tile(WeightFormat format, int64_t k, const RowOf& row_of, std::byte* out) {
  SourceRow rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i) rows[i] = row_of(i);
  std::memset(out, 0, static_cast<size_t>(tile_bytes(format, k)));
  for (int64_t chunk = 0; chunk < tile_chunks(k); ++chunk) {
    ASSAY_TRY(pack_chunk(format, rows, chunk * kTileChunk, out + chunk * tile_chunk_bytes(format)));
  }
  return {};
}

// Tiles hold nvfp4 products times 2^-7.
float factor(const EncodedMatrix& matrix) {
  return matrix.format == WeightFormat::kNvfp4 ? matrix.global_scale * 128.0f : 1.0f;
}

size_t linear_bytes(const WeightSource& source) {
  const EncodedMatrix& first = source.matrices[0];
  const int64_t rows = (source.rows() + kTileRows - 1) / kTileRows * kTileRows;
  return static_cast<size_t>(tile_factor_offset(first.format, rows, first.cols) + rows * 4);
}

Result<void> linear_pack(const WeightSource& source, MutableBytes out) {
  const EncodedMatrix& first = source.matrices[0];
  std::vector<SourceRow> rows;
  for (const EncodedMatrix& matrix : source.matrices) {
    for (int64_t row = 0; row < matrix.rows; ++row) rows.push_back({&matrix, row});
  }
  rows.resize((rows.size() + kTileRows - 1) / kTileRows * kTileRows);
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t tile = 0; tile < count / kTileRows; ++tile) {
    const auto row_of = [&](int i) { return rows[static_cast<size_t>(tile * kTileRows + i)]; };
    ASSAY_TRY(pack_tile(first.format, first.cols, row_of, out.data() + tile * tile_bytes(first.format, first.cols)));
  }
  const std::vector<float> factors = tile_factors(source);
  std::memcpy(out.data() + tile_factor_offset(first.format, count, first.cols), factors.data(), factors.size() * 4);
  return {};
}

size_t rows_offset(const WeightSource& source) {
  const EncodedMatrix& first = source.matrices[0];
  return static_cast<size_t>(tile_rows_offset(first.format, source.rows(), first.cols));
}

size_t tile_and_rows_bytes(const WeightSource& source) {
  size_t bytes = rows_offset(source);
  for (const EncodedMatrix& matrix : source.matrices) bytes += matrix.data.size();
  return bytes;
}

Result<void> tile_and_rows_pack(const WeightSource& source, MutableBytes out) {
  ASSAY_TRY(linear_pack(source, out.first(linear_bytes(source))));
  std::byte* to = out.data() + rows_offset(source);
  for (const EncodedMatrix& matrix : source.matrices) {
    to = std::copy(matrix.data.begin(), matrix.data.end(), to);
  }
  return {};
}

ExpertTiles expert_tiles(const WeightSource& source) {
  const EncodedMatrix& gate = source.matrices[0];
  return {gate.format, static_cast<int64_t>(source.matrices.size() / 3), gate.cols, gate.rows};
}

size_t expert_bytes(const WeightSource& source) {
  return static_cast<size_t>(expert_tiles(source).factors) + source.matrices.size() * 4;
}

// Gate, up and down of one expert.
Result<void> pack_expert(const EncodedMatrix* of, std::byte* to) {
  const WeightFormat format = of[0].format;
  const int64_t hidden = of[0].cols, intermediate = of[0].rows;
  for (int64_t tile = 0; tile < intermediate / 8; ++tile, to += tile_bytes(format, hidden)) {
    const auto row_of = [&](int i) { return SourceRow{&of[i / 8], tile * 8 + i % 8}; };
    ASSAY_TRY(pack_tile(format, hidden, row_of, to));
  }
  for (int64_t tile = 0; tile < hidden / kTileRows; ++tile, to += tile_bytes(format, intermediate)) {
    const auto row_of = [&](int i) { return SourceRow{&of[2], tile * kTileRows + i}; };
    ASSAY_TRY(pack_tile(format, intermediate, row_of, to));
  }
  return {};
}

// A mixture's experts are most of a model's bytes: all processors pack them.
Result<void> expert_pack(const WeightSource& source, MutableBytes out) {
  const ExpertTiles sizes = expert_tiles(source);
  const size_t experts = source.matrices.size() / 3;
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, std::min<size_t>(experts, 64));
  std::vector<Result<void>> done(threads);
  const auto work = [&](size_t thread) {
    for (size_t expert = thread; expert < experts && done[thread].ok(); expert += threads) {
      const auto offset = static_cast<int64_t>(expert) * (sizes.gate_up_bytes + sizes.down_bytes);
      done[thread] = pack_expert(&source.matrices[expert * 3], out.data() + offset);
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
  }
  for (Result<void>& one : done) ASSAY_TRY(std::move(one));
  const std::vector<float> factors = expert_factors(source);
  std::memcpy(out.data() + sizes.factors, factors.data(), factors.size() * 4);
  return {};
}

}  // namespace

std::vector<float> tile_factors(const WeightSource& source) {
  std::vector<float> factors;
  for (const EncodedMatrix& matrix : source.matrices)
    factors.resize(factors.size() + static_cast<size_t>(matrix.rows), factor(matrix));
  factors.resize((factors.size() + kTileRows - 1) / kTileRows * kTileRows);
  return factors;
}

std::vector<float> expert_factors(const WeightSource& source) {
  std::vector<float> factors;
  for (const EncodedMatrix& matrix : source.matrices) factors.push_back(factor(matrix));
  return factors;
}

Error scale_is_not_a_number(const EncodedMatrix& matrix) {
  return Error{ErrorKind::kCheckpoint, "a block scale is not a number", matrix.name, "", "", ""};
}

const Layout kCudaTileLayout{"cuda_tile", linear_bytes, linear_pack};
const Layout kCudaTileAndRowsLayout{"cuda_tile_and_rows", tile_and_rows_bytes, tile_and_rows_pack};
const Layout kCudaExpertTileLayout{"cuda_expert_tile", expert_bytes, expert_pack};

}  // namespace assay::ops
