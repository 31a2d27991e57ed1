// The fp32 dot kernel, for any instruction set with fused multiply-add: included by one kernel file each, after a
// simd_<set>.h of backend/cpu and, in an anonymous namespace,
//   row_codes(bytes, scale): sixteen nvfp4 weights of a row
//   kRowTile, kTokenTile: rows and tokens of a register tile
// Everything here is in an anonymous namespace too, so that each file keeps its own copy.
//
// Order of additions: dot_order.h, with multiplications fused. Up to four tokens weights are decoded as they are read;
// above, kDotRowBlock rows are decoded to a panel in L1/L2, kChunk columns at a time, and used for all tokens.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int64_t kChunk = 1024;  // columns of a panel

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
  const std::byte* scales;
  int64_t row_bytes;
  int64_t row_scales;

  explicit FileRows(const DotRows& rows)
      : data(rows.data), scales(rows.scales), row_bytes(rows.k * element_bits(kFormat) / 8), row_scales(rows.k / 16) {}

  Vec at(int64_t row, int64_t step) const {
    const std::byte* from = data + row * row_bytes + step * (2 * element_bits(kFormat));
    if constexpr (kFormat == DotFormat::kNvfp4) {
      return row_codes(from, kScales.value[static_cast<uint8_t>(scales[row * row_scales + step])]);
    } else {
      return plain(from);
    }
  }
  // The last count < 16 weights of a row, then zeros. Not for nvfp4, whose k is a multiple of 16.
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
  // Brings the same columns of the row `ahead` rows below nearer.
  void prefetch(int64_t row, int64_t ahead, int64_t step) const {
    constexpr int64_t kStepBytes = 2 * element_bits(kFormat);
    if (step * kStepBytes % 64 < kStepBytes) {
      __builtin_prefetch(data + (row + ahead) * row_bytes + step * kStepBytes, 0, 2);
    }
  }
};

// sum[r][t] += the products of rows [row, row + R) with T tokens over all of k.
template <int R, int T, DotFormat kFormat>
inline void add_file_rows(const FileRows<kFormat>& rows, int64_t row, int64_t k, const float* const* x,
                          Vec (&sum)[R][T]) {
  const int64_t steps = k / 16;
  for (int64_t step = 0; step < steps; ++step) {
    Vec weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      weight[r] = rows.at(row + r, step);
      rows.prefetch(row + r, R, step);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Vec token = load(x[t] + step * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][t] = fused(weight[r], token, sum[r][t]);
    }
  }
  if constexpr (kFormat != DotFormat::kNvfp4) {
    if (k % 16 == 0) return;
    for (int r = 0; r < R; ++r) {
      const Vec weight = rows.part(row + r, steps, k % 16);
      for (int t = 0; t < T; ++t) sum[r][t] = fused(weight, load(x[t] + steps * 16), sum[r][t]);
    }
  }
}

template <int R, int T, DotFormat kFormat>
inline void inline_tile(const FileRows<kFormat>& rows, int64_t row, int64_t k, const float* const* x, float* out,
                        int64_t stride) {
  Vec sum[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sum[r][t] = zero();
  }
  add_file_rows<R, T>(rows, row, k, x, sum);
  for (int t = 0; t < T; ++t) fold_rows<R>([&](int r) { return sum[r][t]; }, out + t * stride + row);
}

template <int T, DotFormat kFormat>
void inline_rows(const DotRows& task, const float* const* x, float* out, int64_t stride) {
  const FileRows<kFormat> rows(task);
  int64_t row = 0;
  for (; row + kRowTile <= task.rows; row += kRowTile) {
    inline_tile<kRowTile, T>(rows, row, task.k, x, out, stride);
  }
  for (; row < task.rows; ++row) inline_tile<1, T>(rows, row, task.k, x, out, stride);
}

// sum += products of a panel's rows with tokens, over `steps` steps; `first` and `last` chunk of k.
struct PanelPart {
  const float* panel;  // [rows, kChunk]
  int64_t first;       // column in x
  int64_t steps;
  bool starts, ends;
};

template <int R, int T>
inline void panel_tile(const PanelPart& part, const float* panel, const float* const* x, float* kept, float* out,
                       int64_t stride) {
  Vec sum[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[r][t] = part.starts ? zero() : load(kept + (t * kDotRowBlock + r) * 16);
    }
  }
  const float* tokens[T];
  for (int t = 0; t < T; ++t) tokens[t] = x[t] + part.first;
  for (int64_t step = 0; step < part.steps; ++step) {
    Vec weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weight[r] = load(panel + r * kChunk + step * 16);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Vec token = load(tokens[t] + step * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][t] = fused(weight[r], token, sum[r][t]);
    }
  }
  if (part.ends) {
    for (int t = 0; t < T; ++t) fold_rows<R>([&](int r) { return sum[r][t]; }, out + t * stride);
    return;
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) store(kept + (t * kDotRowBlock + r) * 16, sum[r][t]);
  }
}

template <DotFormat kFormat>
void decode_panel(const DotRows& task, int64_t row, int64_t count, int64_t first, int64_t columns, float* panel) {
  const FileRows<kFormat> rows(task);
  for (int64_t r = 0; r < count; ++r) {
    int64_t step = 0;
    for (; step * 16 + 16 <= columns; ++step)
      store(panel + r * kChunk + step * 16, rows.at(row + r, first / 16 + step));
    if constexpr (kFormat != DotFormat::kNvfp4) {
      if (columns % 16 != 0) {
        store(panel + r * kChunk + step * 16, rows.part(row + r, first / 16 + step, columns % 16));
      }
    }
  }
}

template <int T>
void panel_tokens(const PanelPart& part, int64_t rows, const float* const* x, float* kept, float* out, int64_t stride) {
  int64_t r = 0;
  for (; r + kRowTile <= rows; r += kRowTile) {
    panel_tile<kRowTile, T>(part, part.panel + r * kChunk, x, kept + r * 16, out + r, stride);
  }
  for (; r < rows; ++r) panel_tile<1, T>(part, part.panel + r * kChunk, x, kept + r * 16, out + r, stride);
}

template <DotFormat kFormat>
void panel_rows(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  alignas(64) float panel[kDotRowBlock * kChunk];
  alignas(64) float kept[kDotTokens * kDotRowBlock * 16];
  const auto* x = reinterpret_cast<const float* const*>(tokens.x);
  for (int64_t row = 0; row < task.rows; row += kDotRowBlock) {
    const int64_t rows = task.rows - row < kDotRowBlock ? task.rows - row : kDotRowBlock;
    for (int64_t first = 0; first < task.k; first += kChunk) {
      const int64_t columns = task.k - first < kChunk ? task.k - first : kChunk;
      decode_panel<kFormat>(task, row, rows, first, columns, panel);
      const PanelPart part{panel, first, (columns + 15) / 16, first == 0, first + kChunk >= task.k};
      int64_t t = 0;
      for (; t + kTokenTile <= tokens.count; t += kTokenTile) {
        panel_tokens<kTokenTile>(part, rows, x + t, kept + t * kDotRowBlock * 16, out + t * stride + row, stride);
      }
      for (; t < tokens.count; ++t) {
        panel_tokens<1>(part, rows, x + t, kept + t * kDotRowBlock * 16, out + t * stride + row, stride);
      }
    }
  }
}

template <DotFormat kFormat>
void dot_format(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  const auto* x = reinterpret_cast<const float* const*>(tokens.x);
  switch (tokens.count) {
    case 1:
      return inline_rows<1, kFormat>(task, x, out, stride);
    case 2:
      return inline_rows<2, kFormat>(task, x, out, stride);
    case 3:
      return inline_rows<3, kFormat>(task, x, out, stride);
    case 4:
      return inline_rows<4, kFormat>(task, x, out, stride);
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
