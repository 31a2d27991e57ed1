// The dot kernel of many tokens with bf16 activations (form kBf16), bf16 or nvfp4 weights: bound by the multiply-adds.
// For any instruction set: included by a kernel file, after dot16_kernels.h, with what that asks for and, in an
// anonymous namespace,
//   broadcast_part(from): a float to all of a Part
//   Words, load_words(x, at): 16 bytes from `at` on of x[0], x[4], ..., one after the other
//   transpose_words(in, out): of each 16 bytes of four Words, so that out[i] has the words i of 0, 1, 2, 3, 4, ...
//   low_halves(words), high_halves(words): as fp32, a Part
//   kTokenRows: rows of a tile, three times kTokenRowUnit
// Order of additions: "dot16" (dot_order.h).
//
// A vector holds tokens. They are turned once a call, so that each dot16 lane's activations are one stretch of memory;
// weights are decoded row by row, some columns at a time, and broadcast from L1. A tile is some rows and two vectors of
// tokens; it goes through the dot16 lanes one after the other, each lane's chain over k = l, l + 16, ... in registers,
// and the sixteen sums of an output are folded at the end. Missing tokens, up to a vector, are the last one again.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int64_t kMostChunkSteps = 32;  // of sixteen columns; a tile's weights stay in L1
constexpr int64_t kWeightRow = kMostChunkSteps * 16;
constexpr int64_t kMostBlockChunks = 8;  // whose activations are turned at once
constexpr int64_t kTurnedTokens = 64;    // of as many columns; of fewer, more
constexpr int64_t kTurnedFloats = kTurnedTokens * kMostBlockChunks * 16 * (kMostChunkSteps + 1);
constexpr int64_t kSumFloats = 48 * 1024;

// How `k` columns are cut: equal chunks, and equal blocks of chunks.
struct TokenCuts {
  int64_t k, chunks, chunk_steps, blocks, block_chunks;

  explicit TokenCuts(int64_t columns) : k(columns) {
    const auto parts = [](int64_t all, int64_t most) { return (all + most - 1) / most; };
    const int64_t steps = parts(k, 16);
    chunks = parts(steps, kMostChunkSteps);
    chunk_steps = parts(steps, chunks);
    blocks = parts(chunks, kMostBlockChunks);
    block_chunks = parts(chunks, blocks);
  }
  int64_t first(int64_t chunk) const { return chunk * chunk_steps * 16; }
  int64_t columns(int64_t chunk) const {
    const int64_t left = k - first(chunk);
    return left < chunk_steps * 16 ? left : chunk_steps * 16;
  }
  // Of turned activations of a part; a step more than there are, or all lanes would share L1 sets.
  int64_t lane_floats() const { return (chunk_steps + 1) * kPartLanes; }
  int64_t part_floats() const { return 16 * lane_floats(); }
};

struct TokenScratch {
  alignas(64) float x[kTurnedFloats];                  // [chunk of a block, pair of parts, lane, step, token]
  alignas(64) float weights[kTokenRows * kWeightRow];  // [row, column of a chunk]
  alignas(64) float sums[kSumFloats];                  // [tile of rows, part, lane, row, token]
};
constexpr int64_t kPartSums = 16 * kTokenRows * kPartLanes;
static_assert(kSumFloats >= kDotTokens / kPartLanes * kPartSums);

// Columns [first, first + columns) of the tokens x, P parts, to their lanes. Reads up to a multiple of 16.
template <int P>
void turn_tokens(const std::byte* const* x, int64_t first, int64_t columns, int64_t lane_floats, float* to) {
  for (int64_t step = 0; 16 * step < columns; ++step, to += P * kPartLanes) {
    for (int64_t side = 0; side < 2; ++side) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        Words in[4], out[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) in[i] = load_words(x + p * kPartLanes + i, 2 * (first + 16 * step + 8 * side));
        transpose_words(in, out);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          float* lane = to + (8 * side + 2 * i) * P * lane_floats + p * kPartLanes;
          if (p == 0) {
            __builtin_prefetch(lane + 4 * P * kPartLanes, 1);
            __builtin_prefetch(lane + P * (lane_floats + 4 * kPartLanes), 1);
          }
          store_part(lane, low_halves(out[i]));
          store_part(lane + P * lane_floats, high_halves(out[i]));
        }
      }
    }
  }
}

// Sums of one lane: R rows with P parts, whose sums are kept every kPartSums.
template <int R, int P>
inline void token_tile(const float* weights, const float* x, int64_t steps, bool starts, float* kept) {
  Part sum[R][P];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) sum[r][p] = starts ? Part{} : load_part(kept + p * kPartSums + r * kPartLanes);
  }
#pragma GCC unroll 4
  for (int64_t step = 0; step < steps; ++step) {
    Part token[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) token[p] = load_part(x + (step * P + p) * kPartLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Part weight = broadcast_part(weights + r * kWeightRow + step * 16);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) sum[r][p] = fused_part(weight, token[p], sum[r][p]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) store_part(kept + p * kPartSums + r * kPartLanes, sum[r][p]);
  }
}

// The sixteen sums of each output of a part, folded as dot_order.h says.
void fold_tokens(const float* sums, int64_t rows, int64_t tokens, float* out, int64_t stride) {
  alignas(64) float folded[kTokenRows][kPartLanes];
  for (int64_t r = 0; r < rows; ++r) {
    Part lane[16];
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) lane[l] = load_part(sums + (l * kTokenRows + r) * kPartLanes);
#pragma GCC unroll 4
    for (int half = 8; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    }
    store_part(folded[r], lane[0]);
  }
  for (int64_t t = 0; t < tokens; ++t, out += stride) {
    for (int64_t r = 0; r < rows; ++r) out[r] = folded[r][t];
  }
}

// Lines of the weights of a tile's next chunk, some before each lane, so that they come while this one is used.
class NextWeights {
 public:
  NextWeights(const std::byte* from, int64_t row_bytes, int64_t rows, int64_t bytes)
      : from_(from), row_bytes_(row_bytes), rows_(rows), lines_((bytes + 63) / 64), some_((rows * lines_ + 15) / 16) {}
  void some() {
    for (int64_t i = 0; i < some_ && rows_ > 0; ++i) {
      __builtin_prefetch(from_ + 64 * line_, 0, 2);
      if (++line_ < lines_) continue;
      line_ = 0;
      from_ += row_bytes_;
      --rows_;
    }
  }

 private:
  const std::byte* from_;
  int64_t row_bytes_, rows_, lines_, some_, line_ = 0;
};

// A tile's rows with all parts of a call.
template <DotFormat kFormat>
class TokenTile {
 public:
  TokenTile(const DotRows& task, const TokenCuts& cuts, TokenScratch& scratch, int64_t parts)
      : task_(task), cuts_(cuts), scratch_(scratch), parts_(parts) {}

  void chunk(int64_t row, int64_t rows, int64_t index, float* sums) {
    constexpr int64_t kBits = element_bits(kFormat);
    const int64_t first = cuts_.first(index), columns = cuts_.columns(index), steps = (columns + 15) / 16;
    for (int64_t r = 0; r < rows; ++r) {
      decode_row(FileRows<kFormat>(task_), row + r, first / 16, columns, scratch_.weights + r * kWeightRow);
    }
    if (rows < kTokenRows)
      std::memset(scratch_.weights + rows * kWeightRow, 0, (kTokenRows - rows) * kWeightRow * sizeof(float));
    const int64_t next = index + 1 < cuts_.chunks ? row * task_.k + first + columns : (row + rows) * task_.k;
    NextWeights ahead(task_.data + next * kBits / 8, task_.k * kBits / 8, rows, columns * kBits / 8);
    const float* x = scratch_.x + index % cuts_.block_chunks * parts_ * cuts_.part_floats();
    for (int64_t part = 0; part < parts_; part += 2) {
      for (int64_t lane = 0; lane < 16; ++lane) {
        if (part == 0) ahead.some();
        const int64_t pair = part + 1 < parts_ ? 2 : 1;
        const float* from = x + part * cuts_.part_floats() + lane * pair * cuts_.lane_floats();
        float* to = sums + part * kPartSums + lane * kTokenRows * kPartLanes;
        pair == 2 ? tile<2>(rows, lane, from, steps, index == 0, to) : tile<1>(rows, lane, from, steps, index == 0, to);
      }
    }
  }

 private:
  template <int P>
  void tile(int64_t rows, int64_t lane, const float* x, int64_t steps, bool starts, float* sums) {
    const float* weights = scratch_.weights + lane;
    if (rows > 2 * kTokenRowUnit) return token_tile<3 * kTokenRowUnit, P>(weights, x, steps, starts, sums);
    if (rows > kTokenRowUnit) return token_tile<2 * kTokenRowUnit, P>(weights, x, steps, starts, sums);
    token_tile<kTokenRowUnit, P>(weights, x, steps, starts, sums);
  }

  const DotRows& task_;
  const TokenCuts& cuts_;
  TokenScratch& scratch_;
  int64_t parts_;
};

template <DotFormat kFormat>
void tokens_dot(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  TokenScratch scratch;
  const TokenCuts cuts(task.k);
  const int64_t all_parts = (tokens.count + kPartLanes - 1) / kPartLanes;
  const int64_t fit = kTurnedFloats / (cuts.block_chunks * cuts.part_floats());
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  for (int64_t part = 0, parts; part < all_parts; part += parts) {
    parts = least(fit, all_parts - part);
    TokenTile<kFormat> tile(task, cuts, scratch, parts);
    const std::byte* x[kDotTokens + 16];
    const int64_t first_token = part * kPartLanes;
    for (int64_t t = 0; t < parts * kPartLanes; ++t) x[t] = tokens.x[least(first_token + t, tokens.count - 1)];
    // Between blocks of columns sums are kept, of as many rows as there is room for.
    const int64_t tile_sums = cuts.blocks == 1 ? 0 : parts * kPartSums;
    const int64_t most_rows = cuts.blocks == 1 ? task.rows : kSumFloats / tile_sums * kTokenRows;
    for (int64_t begin = 0, end; begin < task.rows; begin = end) {
      end = least(begin + most_rows, task.rows);
      for (int64_t block = 0; block < cuts.blocks; ++block) {
        const int64_t first = block * cuts.block_chunks, last = least(first + cuts.block_chunks, cuts.chunks);
        for (int64_t c = first; c < last; ++c) {
          float* to = scratch.x + (c - first) * parts * cuts.part_floats();
          for (int64_t p = 0; p < parts; p += 2, to += 2 * cuts.part_floats()) {
            const auto turn = p + 1 < parts ? turn_tokens<2> : turn_tokens<1>;
            turn(x + p * kPartLanes, cuts.first(c), cuts.columns(c), cuts.lane_floats(), to);
          }
        }
        float* sums = scratch.sums;
        for (int64_t row = begin; row < end; row += kTokenRows, sums += tile_sums) {
          const int64_t rows = least(kTokenRows, end - row);
          for (int64_t c = first; c < last; ++c) tile.chunk(row, rows, c, sums);
          if (last < cuts.chunks) continue;
          for (int64_t p = 0; p < parts; ++p) {
            const int64_t token = first_token + p * kPartLanes;
            fold_tokens(sums + p * kPartSums, rows, least(kPartLanes, tokens.count - token), out + token * stride + row,
                        stride);
          }
        }
      }
    }
  }
}

void tokens_dot(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  task.format == DotFormat::kBf16 ? tokens_dot<DotFormat::kBf16>(task, tokens, out, stride)
                                  : tokens_dot<DotFormat::kNvfp4>(task, tokens, out, stride);
}

}  // namespace
}  // namespace assay::ops
