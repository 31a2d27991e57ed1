// The fp32 dot kernel, for any instruction set with fused multiply-add: included by one kernel file each, after a
// simd_<set>.h of backend/cpu and, in an anonymous namespace,
//   Codes: 32 nvfp4 weights of a row, codes of two blocks times their scales
//   fold_sums<R>(sums, out): R sums of sixteen lanes folded as dot_order.h says
//   kRowTile: rows of a tile whose weights are decoded as they are read
//   prefetch_bytes(bytes of such a tile): how far ahead to prefetch
//   Part, kPartLanes, load_part, store_part, fused_part: a register of a panel's tile; sixteen lanes are one or two
//   kPanelRows, kPanelTokens: rows and tokens of a panel's tile
// Everything here is in an anonymous namespace too, so that each file keeps its own copy.
//
// Order of additions: dot_order.h, with multiplications fused. Up to four tokens weights are decoded as they are read;
// above, kDotRowBlock rows are decoded to a panel in L1, kDotBlock columns at a time, and used for all tokens.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

struct ScaleTable {
  float value[256];
};

// E4M3 by code.
constexpr ScaleTable make_scale_table() {
  ScaleTable table{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned exponent = (code >> 3) & 15, fraction = code & 7;
    float value = static_cast<float>(exponent == 0 ? fraction : 8 + fraction) / 512.0f;
    for (unsigned e = 1; e < exponent; ++e) value *= 2.0f;
    if ((code & 0x7f) == 0x7f) value = __builtin_nanf("");
    table.value[code] = code >= 128 ? -value : value;
  }
  return table;
}
alignas(64) constexpr ScaleTable kScales = make_scale_table();

constexpr int64_t element_bits(DotFormat format) {
  return format == DotFormat::kF32 ? 32 : format == DotFormat::kNvfp4 ? 4 : 16;
}

// Where a row's weights come from: at(r, step) gives weights [16 step, 16 step + 16) of row r.
template <DotFormat kFormat>
struct FileRows {
  const std::byte* data;
  int64_t row_bytes;

  explicit FileRows(const DotRows& rows) : data(rows.data), row_bytes(rows.k * element_bits(kFormat) / 8) {}

  Vec at(int64_t row, int64_t step) const { return plain(data + row * row_bytes + step * (2 * element_bits(kFormat))); }
  // The last count < 16 weights of a row, then zeros.
  Vec part(int64_t row, int64_t step, int64_t count) const {
    std::byte padded[64] = {};
    constexpr int64_t kBytes = element_bits(kFormat) / 8;
    std::memcpy(padded, data + row * row_bytes + step * 16 * kBytes, static_cast<size_t>(count * kBytes));
    return plain(padded);
  }
  static Vec plain(const std::byte* from) {
    if constexpr (kFormat == DotFormat::kF32) return load(reinterpret_cast<const float*>(from));
    if constexpr (kFormat == DotFormat::kBf16) return load_bf16(from);
    if constexpr (kFormat == DotFormat::kF16) return load_f16(from);
  }
  void prefetch(int64_t row, int64_t step, int64_t ahead) const {
    __builtin_prefetch(data + row * row_bytes + step * (2 * element_bits(kFormat)) + ahead, 0, 2);
  }
};

// The same of nvfp4, whose k is a multiple of 16: two steps, 32 weights, at a time.
template <>
struct FileRows<DotFormat::kNvfp4> {
  const std::byte* data;
  const std::byte* scales;
  int64_t row_bytes;
  int64_t row_scales;

  explicit FileRows(const DotRows& rows)
      : data(rows.data), scales(rows.scales), row_bytes(rows.k / 2), row_scales(rows.k / 16) {}

  float scale(int64_t row, int64_t step) const {
    return kScales.value[static_cast<uint8_t>(scales[row * row_scales + step])];
  }
  // Steps `step` and the next.
  Codes at(int64_t row, int64_t step) const {
    return Codes(data + row * row_bytes + step * 8, scale(row, step), scale(row, step + 1));
  }
  // The last step of a row with an odd number of them, then zeros.
  Codes last(int64_t row, int64_t step) const {
    std::byte padded[16] = {};
    std::memcpy(padded, data + row * row_bytes + step * 8, 8);
    return Codes(padded, scale(row, step), 0.0f);
  }
  void prefetch(int64_t row, int64_t step, int64_t ahead) const {
    __builtin_prefetch(data + row * row_bytes + step * 8 + ahead, 0, 2);
  }
  void prefetch_scales(int64_t row, int64_t step, int64_t ahead) const {
    __builtin_prefetch(scales + row * row_scales + step + ahead, 0, 2);
  }
};

// Up to T tokens in form kF32.
template <int T>
struct Tokens {
  const float* x[T];
  int64_t block_stride;

  Tokens(const DotTokens& tokens, int64_t first) : block_stride(tokens.block_stride / 4) {
    for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const float*>(tokens.x[first + t]);
  }
  const float* block(int t, int64_t index) const { return x[t] + index * block_stride; }
};

// sum[r][t] += the products of one step's weights with T tokens at x.
template <int R, int T>
inline void add_step(const Vec (&weight)[R], const float* const (&x)[T], int64_t step, Vec (&sum)[R][T]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Vec token = load(x[t] + step * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r][t] = fused(weight[r], token, sum[r][t]);
  }
}

// sum[r][t] += the products of rows [row, row + R) with T tokens: kSteps steps of k from `step` on, which are at `at`
// in x.
template <int kSteps, int R, int T, DotFormat kFormat>
inline void add_steps(const FileRows<kFormat>& rows, int64_t row, int64_t step, int64_t at, const float* const (&x)[T],
                      Vec (&sum)[R][T]) {
  Vec weight[R];
  if constexpr (kFormat == DotFormat::kNvfp4) {
    static_assert(kSteps % 2 == 0);
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; s += 2) {
      Vec second[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Codes codes = rows.at(row + r, step + s);
        weight[r] = codes.first();
        second[r] = codes.second();
      }
      add_step(weight, x, at + s, sum);
      add_step(second, x, at + s + 1, sum);
    }
  } else {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) weight[r] = rows.at(row + r, step + s);
      add_step(weight, x, at + s, sum);
    }
  }
}

// The same of `columns` from column `first` of k on, which are at 0 in x.
template <int R, int T, DotFormat kFormat>
inline void add_block(const FileRows<kFormat>& rows, int64_t row, int64_t first, int64_t columns,
                      const float* const (&x)[T], Vec (&sum)[R][T]) {
  constexpr int kLine = 32 / element_bits(kFormat);            // steps of a cache line
  constexpr int kUnit = kFormat == DotFormat::kNvfp4 ? 2 : 1;  // steps decoded at once
  const int64_t begin = first / 16, steps = columns / 16, ahead = prefetch_bytes(R * rows.row_bytes);
  if constexpr (kFormat == DotFormat::kNvfp4) {
    for (int r = 0; r < R; ++r) rows.prefetch_scales(row + r, begin, ahead / 8);
  }
  int64_t step = 0;
  for (; step + kLine <= steps; step += kLine) {
    for (int r = 0; r < R; ++r) rows.prefetch(row + r, begin + step, ahead);
    add_steps<kLine>(rows, row, begin + step, step, x, sum);
  }
  for (; step + kUnit <= steps; step += kUnit) add_steps<kUnit>(rows, row, begin + step, step, x, sum);
  Vec weight[R];
  if constexpr (kFormat == DotFormat::kNvfp4) {
    if (step == steps) return;
    for (int r = 0; r < R; ++r) weight[r] = rows.last(row + r, begin + step).first();
  } else {
    if (columns % 16 == 0) return;
    for (int r = 0; r < R; ++r) weight[r] = rows.part(row + r, begin + step, columns % 16);
  }
  add_step(weight, x, step, sum);
}

template <int R, int T, DotFormat kFormat>
inline void inline_tile(const FileRows<kFormat>& rows, int64_t row, int64_t k, const Tokens<T>& tokens, float* out,
                        int64_t stride) {
  Vec sum[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sum[r][t] = zero();
  }
  for (int64_t first = 0; first < k; first += kDotBlock) {
    const float* x[T];
    for (int t = 0; t < T; ++t) x[t] = tokens.block(t, first / kDotBlock);
    add_block<R, T>(rows, row, first, k - first < kDotBlock ? k - first : kDotBlock, x, sum);
  }
  for (int t = 0; t < T; ++t) fold_sums<R>([&](int r) { return sum[r][t]; }, out + t * stride + row);
}

template <int T, DotFormat kFormat>
void inline_rows(const DotRows& task, const DotTokens& given, float* out, int64_t stride) {
  const FileRows<kFormat> rows(task);
  const Tokens<T> tokens(given, 0);
  int64_t row = 0;
  for (; row + kRowTile <= task.rows; row += kRowTile) {
    inline_tile<kRowTile, T>(rows, row, task.k, tokens, out, stride);
  }
  for (; row < task.rows; ++row) inline_tile<1, T>(rows, row, task.k, tokens, out, stride);
}

// One block of k, and whether it is the first or the last: between blocks sums are kept in memory.
struct Block {
  const float* panel;  // [kDotRowBlock, kDotBlock]
  int64_t index;
  int64_t steps;
  bool starts, ends;
};

// Lanes [lane, lane + kPartLanes) of the sums of R panel rows with T tokens. kept: [T, kDotRowBlock, 16].
template <int R, int T>
inline void panel_part(const Block& block, const float* panel, const Tokens<T>& tokens, int lane, float* kept) {
  Part sum[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[r][t] = block.starts ? Part{} : load_part(kept + (t * kDotRowBlock + r) * 16 + lane);
    }
  }
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = tokens.block(t, block.index) + lane;
  for (int64_t step = 0; step < block.steps; ++step) {
    Part weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weight[r] = load_part(panel + r * kDotBlock + step * 16 + lane);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Part token = load_part(x[t] + step * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][t] = fused_part(weight[r], token, sum[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store_part(kept + (t * kDotRowBlock + r) * 16 + lane, sum[r][t]);
  }
}

template <int R, int T>
inline void panel_tile(const Block& block, const float* panel, const Tokens<T>& tokens, float* kept, float* out,
                       int64_t stride) {
#pragma GCC unroll 2
  for (int lane = 0; lane < 16; lane += kPartLanes) panel_part<R, T>(block, panel, tokens, lane, kept);
  if (!block.ends) return;
  for (int t = 0; t < T; ++t) {
    const float* sums = kept + t * kDotRowBlock * 16;
    fold_sums<R>([&](int r) { return load(sums + r * 16); }, out + t * stride);
  }
}

// Rows of a panel with T tokens.
template <int T>
void panel_tokens(const Block& block, int64_t rows, const Tokens<T>& tokens, float* kept, float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + kPanelRows <= rows; r += kPanelRows) {
    panel_tile<kPanelRows, T>(block, block.panel + r * kDotBlock, tokens, kept + r * 16, out + r, stride);
  }
  for (; r < rows; ++r) panel_tile<1, T>(block, block.panel + r * kDotBlock, tokens, kept + r * 16, out + r, stride);
}

// Columns [first, first + columns) of a row to fp32, up to a whole step; first: a step.
template <DotFormat kFormat>
void decode_row(FileRows<kFormat> rows, int64_t row, int64_t first, int64_t columns, float* to) {
  const int64_t steps = columns / 16;
  int64_t step = 0;
  if constexpr (kFormat == DotFormat::kNvfp4) {
    for (; step + 2 <= steps; step += 2, to += 32) {
      const Codes codes = rows.at(row, first + step);
      store(to, codes.first());
      store(to + 16, codes.second());
    }
    if (step < steps) store(to, rows.last(row, first + step).first());
  } else {
    for (; step < steps; ++step, to += 16) store(to, rows.at(row, first + step));
    if (columns % 16 != 0) store(to, rows.part(row, first + step, columns % 16));
  }
}

template <DotFormat kFormat>
void decode_panel(const DotRows& task, int64_t row, int64_t count, int64_t first, int64_t columns, float* panel) {
  constexpr int64_t kPanelBytes = kDotBlock * element_bits(kFormat) / 8;
  constexpr int kLine = 32 / element_bits(kFormat);
  const FileRows<kFormat> rows(task);
  const int64_t begin = first / 16, steps = columns / 16;
  for (int64_t r = row; r < row + count; ++r, panel += kDotBlock) {
    for (int64_t step = 0; step < steps; step += kLine) rows.prefetch(r, begin + step, kPanelBytes);  // the next panel
    decode_row(rows, r, begin, columns, panel);
  }
}

// Rows and tokens whose sums are kept between blocks: with a block of the tokens they stay in L2.
constexpr int64_t kGroupRows = 64, kGroupTokens = 64;

template <DotFormat kFormat>
void panel_group(const DotRows& task, int64_t row, int64_t row_count, const DotTokens& tokens, int64_t token,
                 int64_t token_count, float* out, int64_t stride) {
  alignas(64) float panel[kDotRowBlock * kDotBlock];
  alignas(64) float kept[kGroupRows * kGroupTokens * 16];
  for (int64_t first = 0; first < task.k; first += kDotBlock) {
    const int64_t columns = task.k - first < kDotBlock ? task.k - first : kDotBlock;
    const Block block{panel, first / kDotBlock, (columns + 15) / 16, first == 0, first + kDotBlock >= task.k};
    for (int64_t r = 0; r < row_count; r += kDotRowBlock) {
      const int64_t rows = row_count - r < kDotRowBlock ? row_count - r : kDotRowBlock;
      decode_panel<kFormat>(task, row + r, rows, first, columns, panel);
      const auto run = [&]<int T>(int64_t t) {
        panel_tokens<T>(block, rows, Tokens<T>(tokens, token + t), kept + (r * kGroupTokens + t * kDotRowBlock) * 16,
                        out + (token + t) * stride + row + r, stride);
        return t + T;
      };
      int64_t t = 0;
      while (t + kPanelTokens <= token_count && token_count - t != kPanelTokens + 1) {
        t = run.template operator()<kPanelTokens>(t);
      }
      while (t + 2 <= token_count) t = run.template operator()<2>(t);
      if (t < token_count) run.template operator()<1>(t);
    }
  }
}

template <DotFormat kFormat>
void panel_rows(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  for (int64_t t = 0; t < tokens.count; t += kGroupTokens) {
    const int64_t count = tokens.count - t < kGroupTokens ? tokens.count - t : kGroupTokens;
    for (int64_t row = 0; row < task.rows; row += kGroupRows) {
      const int64_t rows = task.rows - row < kGroupRows ? task.rows - row : kGroupRows;
      panel_group<kFormat>(task, row, rows, tokens, t, count, out, stride);
    }
  }
}

template <DotFormat kFormat>
void dot_format(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  switch (tokens.count) {
    case 1:
      return inline_rows<1, kFormat>(task, tokens, out, stride);
    case 2:
      return inline_rows<2, kFormat>(task, tokens, out, stride);
    case 3:
      return inline_rows<3, kFormat>(task, tokens, out, stride);
    case 4:
      return inline_rows<4, kFormat>(task, tokens, out, stride);
    default:
      return panel_rows<kFormat>(task, tokens, out, stride);
  }
}

void dot16(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  switch (rows.format) {
    case DotFormat::kF32:
      return dot_format<DotFormat::kF32>(rows, tokens, out, stride);
    case DotFormat::kBf16:
      return dot_format<DotFormat::kBf16>(rows, tokens, out, stride);
    case DotFormat::kF16:
      return dot_format<DotFormat::kF16>(rows, tokens, out, stride);
    case DotFormat::kNvfp4:
      return dot_format<DotFormat::kNvfp4>(rows, tokens, out, stride);
  }
}

}  // namespace
}  // namespace assay::ops
