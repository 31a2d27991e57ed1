// The dot kernel of form kLanes for AVX2: many tokens, bound by the multiply-adds. Included by its kernel file, after
// dot16_kernels.h. Order of additions: "dot16" (dot_order.h).
//
// A vector holds sixteen outputs, so a weight is loaded once for all of them and an activation is broadcast from
// memory: six tokens and two registers of outputs are twelve sums, a load for 1.5 multiply-adds. To add up as dot16
// says, the dot16 lanes are gone through one after the other: lane l's chain runs over k = l, l + 16, ... in registers,
// for every tile of tokens, and the sixteen sums of an output are folded at the end. Columns go chunk by chunk: sixteen
// rows of one are decoded to fp32, turned so that a lane's weights are one stretch of L1, and used for all tokens.
#pragma once

#include <cstring>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int64_t kLaneRows = 16;   // of a panel: two registers
constexpr int kLaneTileTokens = 6;  // at most
constexpr int64_t kMostSteps = kMostLaneColumns / 16;
constexpr int64_t kPanelLane = (kMostSteps + 1) * kLaneRows;  // floats; one step more, or all lanes would share L1 sets

struct LanePanel {
  alignas(64) float weights[16 * kPanelLane];                 // [lane, step, row]
  alignas(64) float sums[16 * (kDotTokens + 1) * kLaneRows];  // [lane, token, row], between chunks
};

// Sums of T tokens, whose columns of the lane are at given[t], with the lane's weights. given[T + t]: what comes next.
template <int T>
inline void lane_tile(const float* weights, int64_t steps, const float* const* given, bool starts, float* kept) {
  __m256 sum[T][2];
  const float* x[T];
#pragma GCC unroll 6
  for (int t = 0; t < T; ++t) {
    x[t] = given[t];
    for (int h = 0; h < 2; ++h) sum[t][h] = starts ? __m256{} : _mm256_load_ps(kept + t * kLaneRows + 8 * h);
  }
  const auto add = [&](int64_t step) {
    const __m256 low = _mm256_load_ps(weights + step * kLaneRows);
    const __m256 high = _mm256_load_ps(weights + step * kLaneRows + 8);
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
      const __m256 token = _mm256_broadcast_ss(x[t] + step);
      sum[t][0] = _mm256_fmadd_ps(low, token, sum[t][0]);
      sum[t][1] = _mm256_fmadd_ps(high, token, sum[t][1]);
    }
  };
  constexpr int64_t kLine = 16;
  int64_t step = 0;
  for (; step + kLine <= steps; step += kLine) {
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) __builtin_prefetch(given[T + t] + step);
    for (int64_t s = step; s < step + kLine; ++s) add(s);
  }
  for (; step < steps; ++step) add(step);
#pragma GCC unroll 6
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < 2; ++h) _mm256_store_ps(kept + t * kLaneRows + 8 * h, sum[t][h]);
  }
}

void lane_tiles(const float* weights, int64_t steps, const float* const* x, int64_t tokens, bool starts, float* kept) {
  constexpr auto kTile = [](int64_t left) {  // as equal as can be: short tiles leave multiply-adds waiting
    const int64_t tiles = (left + kLaneTileTokens - 1) / kLaneTileTokens;
    return (left + tiles - 1) / tiles;
  };
  for (int64_t t = 0; t < tokens;) {
    const int64_t count = kTile(tokens - t);
    float* to = kept + t * kLaneRows;
    switch (count) {
      case 6:
        lane_tile<6>(weights, steps, x + t, starts, to);
        break;
      case 5:
        lane_tile<5>(weights, steps, x + t, starts, to);
        break;
      case 4:
        lane_tile<4>(weights, steps, x + t, starts, to);
        break;
      case 3:
        lane_tile<3>(weights, steps, x + t, starts, to);
        break;
      case 2:
        lane_tile<2>(weights, steps, x + t, starts, to);
        break;
      default:
        lane_tile<1>(weights, steps, x + t, starts, to);
        break;
    }
    t += count;
  }
}

// Sixteen rows of a cache line each, copied side by side: rows some KiB apart would throw each other out of L1.
struct RowLines {
  alignas(64) std::byte row[kLaneRows][64];

  // `bytes` of `count` rows, the rest zeros.
  RowLines(const std::byte* from, int64_t row_bytes, int64_t count, int64_t bytes) {
    if (count == kLaneRows && bytes == 64) [[likely]] {
      for (int64_t r = 0; r < kLaneRows; ++r) std::memcpy(row[r], from + r * row_bytes, 64);
      return;
    }
    std::memset(row, 0, sizeof(row));
    for (int64_t r = 0; r < count; ++r) std::memcpy(row[r], from + r * row_bytes, static_cast<size_t>(bytes));
  }
};

// Transposes 8 x 8 words in each half of the registers.
inline void transpose_words(const __m256i (&in)[8], __m256i* out) {
  __m256i pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi16(in[i], in[i + 4]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi16(in[i], in[i + 4]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    quads[2 * i] = _mm256_unpacklo_epi16(pairs[i], pairs[i + 4]);
    quads[2 * i + 1] = _mm256_unpackhi_epi16(pairs[i], pairs[i + 4]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = _mm256_unpacklo_epi16(quads[i], quads[i + 4]);
    out[2 * i + 1] = _mm256_unpackhi_epi16(quads[i], quads[i + 4]);
  }
}

// Sixteen columns of bf16, from column 16 `step` of the lines on, each to its lane.
inline void decode_bf16(const RowLines& lines, int64_t step, float* to) {
  const __m256i zero = _mm256_setzero_si256();
  for (int side = 0; side < 2; ++side) {
    __m256i in[8], columns[8];
#pragma GCC unroll 8
    for (int slot = 0; slot < 8; ++slot) {  // in an order that leaves a column's low words as rows 0 to 7
      const auto at = [&](int row) {
        return _mm_load_si128(reinterpret_cast<const __m128i*>(lines.row[row] + 32 * step + 16 * side));
      };
      const int row = slot % 4 + slot / 4 * 8;
      in[slot] = _mm256_inserti128_si256(_mm256_castsi128_si256(at(row)), at(row + 4), 1);
    }
    transpose_words(in, columns);
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      float* lane = to + (8 * side + c) * kPanelLane;
      _mm256_store_ps(lane, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, columns[c])));
      _mm256_store_ps(lane + 8, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, columns[c])));
    }
  }
}

// A block of nvfp4 of sixteen rows, code * scale, each column to its lane. scales: of the rows.
inline void decode_nvfp4(const RowLines& lines, int64_t step, const float* scales, float* to) {
  __m128i bytes[16], sides[8];  // sides: of each byte of the block the sixteen rows
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) bytes[r] = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(lines.row[r] + 8 * step));
  __m128i pairs[8], quads[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) pairs[i] = _mm_unpacklo_epi8(bytes[i], bytes[i + 8]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // quads[i]: of bytes 0 to 3, quads[i + 4]: of bytes 4 to 7
    quads[i] = _mm_unpacklo_epi8(pairs[i], pairs[i + 4]);
    quads[i + 4] = _mm_unpackhi_epi8(pairs[i], pairs[i + 4]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m128i* in = quads + 4 * half;
    const __m128i even[2] = {_mm_unpacklo_epi8(in[0], in[2]), _mm_unpackhi_epi8(in[0], in[2])};
    const __m128i odd[2] = {_mm_unpacklo_epi8(in[1], in[3]), _mm_unpackhi_epi8(in[1], in[3])};
    for (int i = 0; i < 2; ++i) {
      sides[4 * half + 2 * i] = _mm_unpacklo_epi8(even[i], odd[i]);
      sides[4 * half + 2 * i + 1] = _mm_unpackhi_epi8(even[i], odd[i]);
    }
  }
  const __m128i table = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, -128, -72, -68, -66, -64, -62, -60,
                                      -58);  // of f16 the high byte; the low one is zero
  const __m128i nibble = _mm_set1_epi8(15), zero = _mm_setzero_si128();
  const __m256 low = _mm256_load_ps(scales), high = _mm256_load_ps(scales + 8);
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) {
    const __m128i codes = _mm_and_si128(c % 2 == 0 ? sides[c / 2] : _mm_srli_epi16(sides[c / 2], 4), nibble);
    const __m128i f16 = _mm_shuffle_epi8(table, codes);
    float* lane = to + c * kPanelLane;
    _mm256_store_ps(lane, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, f16)), low));
    _mm256_store_ps(lane + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, f16)), high));
  }
}

// Columns [first, first + columns) of `count` rows; missing ones, up to the end of a step, are zeros.
template <DotFormat kFormat>
void decode_lanes(const DotRows& task, int64_t row, int64_t count, int64_t first, int64_t columns, float* panel) {
  constexpr int64_t kBits = element_bits(kFormat), kLine = 512 / kBits;
  const int64_t row_bytes = task.k * kBits / 8;
  const std::byte* from = task.data + row * row_bytes + first * kBits / 8;
  for (int64_t at = 0; at < columns; at += kLine, from += 64) {
    const int64_t left = columns - at < kLine ? columns - at : kLine;
    const RowLines lines(from, row_bytes, count, left * kBits / 8);
    for (int64_t step = 0; 16 * step < left; ++step, panel += kLaneRows) {
      if constexpr (kFormat == DotFormat::kBf16) {
        decode_bf16(lines, step, panel);
      } else {
        alignas(32) float scales[kLaneRows] = {};
        const std::byte* codes = task.scales + (row * task.k + first + at) / 16 + step;
        for (int64_t r = 0; r < count; ++r) scales[r] = kScales.value[static_cast<uint8_t>(codes[r * (task.k / 16)])];
        decode_nvfp4(lines, step, scales, panel);
      }
    }
  }
}

// The sixteen sums of each output, folded as dot_order.h says.
void fold_lanes(const float* sums, int64_t lane_sums, int64_t tokens, int64_t rows, float* out, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t, out += stride) {
    alignas(32) float folded[kLaneRows];
    for (int h = 0; h < 2; ++h) {
      __m256 lane[16];
#pragma GCC unroll 16
      for (int l = 0; l < 16; ++l) lane[l] = _mm256_load_ps(sums + l * lane_sums + t * kLaneRows + 8 * h);
#pragma GCC unroll 4
      for (int half = 8; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int l = 0; l < half; ++l) lane[l] = _mm256_add_ps(lane[l], lane[l + half]);
      }
      _mm256_store_ps(folded + 8 * h, lane[0]);
    }
    std::memcpy(out, folded, static_cast<size_t>(rows) * sizeof(float));
  }
}

// Lines of the next panel's rows, some before each lane, so that they come while this one is used.
class PanelPrefetch {
 public:
  PanelPrefetch(const std::byte* next, int64_t row_bytes, int64_t bytes)
      : next_(next), row_bytes_(row_bytes), lines_((bytes + 63) / 64) {}
  void some() {
    for (int64_t i = 0; i < lines_; ++i, ++at_) {  // a sixteenth of kLaneRows rows
      __builtin_prefetch(next_ + at_ / lines_ * row_bytes_ + at_ % lines_ * 64, 0, 2);
    }
  }

 private:
  const std::byte* next_;
  int64_t row_bytes_, lines_, at_ = 0;
};

template <DotFormat kFormat>
void lanes_dot(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  LanePanel panel;
  const auto bytes = [](int64_t weights) { return weights * element_bits(kFormat) / 8; };
  const int64_t chunk = lane_columns(task.k);
  const int64_t lane_sums = (tokens.count + 1) * kLaneRows;  // one token more, or all lanes would share L1 sets
  for (int64_t row = 0; row < task.rows; row += kLaneRows) {
    const int64_t rows = task.rows - row < kLaneRows ? task.rows - row : kLaneRows;
    for (int64_t first = 0; first < task.k; first += chunk) {
      const int64_t columns = task.k - first < chunk ? task.k - first : chunk, steps = (columns + 15) / 16;
      decode_lanes<kFormat>(task, row, rows, first, columns, panel.weights);
      const int64_t next = first + chunk < task.k ? row * task.k + first + chunk : (row + kLaneRows) * task.k;
      PanelPrefetch prefetch(task.data + bytes(next), bytes(task.k), bytes(chunk));
      for (int64_t lane = 0; lane < 16; ++lane) {
        prefetch.some();
        const float* x[kDotTokens + kLaneTileTokens];
        for (int64_t t = 0; t < tokens.count; ++t) {
          x[t] = reinterpret_cast<const float*>(tokens.x[t] + first / chunk * tokens.block_stride) + lane * chunk / 16;
        }
        for (int t = 0; t < kLaneTileTokens; ++t) x[tokens.count + t] = x[t % tokens.count] + chunk / 16;
        lane_tiles(panel.weights + lane * kPanelLane, steps, x, tokens.count, first == 0,
                   panel.sums + lane * lane_sums);
      }
    }
    fold_lanes(panel.sums, lane_sums, tokens.count, rows, out + row, stride);
  }
}

void lanes_dot(const DotRows& task, const DotTokens& tokens, float* out, int64_t stride) {
  task.format == DotFormat::kBf16 ? lanes_dot<DotFormat::kBf16>(task, tokens, out, stride)
                                  : lanes_dot<DotFormat::kNvfp4>(task, tokens, out, stride);
}

}  // namespace
}  // namespace assay::ops
