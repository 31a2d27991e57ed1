// The instruction sets of dot_kernel.h as rows use them: names, refusals, orders of additions, and activations in the
// form a kernel wants.
#pragma once

#include <algorithm>

#include "backend/cpu/thread_pool.h"
#include "ops/batch.h"
#include "ops/dot_kernel.h"
#include "ops/dot_order.h"
#include "ops/impl.h"

namespace assay::ops {

struct DotPlaces;
struct StepPlaces;

struct CpuDot {
  const char* row;  // name of the rows made of it
  DotFunction dot;
  FixedFunction fixed;  // null: nvfp4 never in form kFixed
  bool pairs;           // vdpbf16ps: bf16 activations, bf16 and nvfp4 weights
  int64_t bf16_tokens;  // of a weight, from which on bf16 weights and activations have form kBf16, not kF32
  int64_t lane_tokens;  // the same for form kLanes, not kBf16
  bool phased;  // nvfp4 with bf16 activations alone: prefill tokens as if of bf16 weights, whose order is another
  bool (*has)(const device::CpuFeatures&);
  const char* missing;  // the refusal where has() is false

  // Where a weight is used for `sharing` tokens or so.
  DotForm form(numeric::WeightFormat format, DType activation, int64_t sharing) const {
    if (pairs) return format == numeric::WeightFormat::kNvfp4 ? DotForm::kBf16Planes : DotForm::kBf16;
    if (dot_fixed(format, activation)) return DotForm::kFixed;
    const bool bf16 = format == numeric::WeightFormat::kBf16 && activation == DType::kBf16;
    return bf16 && sharing >= bf16_tokens ? many(sharing) : DotForm::kF32;
  }
  // Places of a step.
  StepPlaces places(numeric::WeightFormat format, DType activation, int64_t k, const TokenCounts& tokens,
                    int64_t sharing) const;
  // Of all steps of so many tokens, the most bytes.
  int64_t most_bytes(numeric::WeightFormat format, DType activation, int64_t k, int32_t tokens, int64_t sharing) const;
  Refusal refuse(numeric::WeightFormat format, DType activation, const DeviceCaps& caps) const;
  // What the dot products add up like, as part of an op's order: "dot16 exact", ...
  std::string_view order(numeric::WeightFormat format, DType activation) const;
  // All tokens of activations [T, k] to out, in their form; over the pool's threads where it is worth it.
  void prepare(const StepPlaces& places, const ConstView& x, std::byte* out, cpu::ThreadPool& pool) const;

 private:
  DotForm many(int64_t sharing) const { return sharing >= lane_tokens ? DotForm::kLanes : DotForm::kBf16; }
  void prepare_token(const DotPlaces& places, const ConstView& x, int64_t token, std::byte* to) const;
};

// Constant-initialised: rows are made of them before main.
extern const CpuDot kCpuAvx2;
extern const CpuDot kCpuAvx2Phased;
extern const CpuDot kCpuAvx512;
extern const CpuDot kCpuAvx512Phased;
extern const CpuDot kCpuAvx512Bf16;

// Where the activations of `tokens` tokens lie when they are prepared for a kernel.
struct DotPlaces {
  DotForm form;
  int64_t tokens;
  int64_t k;

  bool blocked() const { return form == DotForm::kF32 || form == DotForm::kFixed; }
  int64_t blocks() const {
    if (form == DotForm::kLanes) return (k + lane_columns(k) - 1) / lane_columns(k);
    return blocked() ? padded(kDotBlock) / kDotBlock : 1;
  }
  int64_t block_bytes() const {
    constexpr int64_t kLine = 64;  // one more, or all tokens would share cache sets
    if (form == DotForm::kF32) return kDotBlock * 4;
    if (form == DotForm::kFixed) return kFixedBlockBytes;
    if (form == DotForm::kLanes) return lane_columns(k) * 4 + kLine;
    return 2 * padded(form == DotForm::kBf16 ? 32 : 128) + kLine;
  }
  int64_t block_stride() const { return tokens * block_bytes(); }
  int64_t bytes() const { return blocks() * block_stride(); }
  // Offset of a token, in bytes.
  int64_t at(int64_t token) const { return token * block_bytes(); }
  // Elements of a token that a kernel may read in forms kF32 and kBf16, the last ones zero.
  int64_t elements() const { return padded(form == DotForm::kF32 ? 16 : 32); }

 private:
  int64_t padded(int64_t step) const { return (k + step - 1) / step * step; }
};

// The same of a step: its decode and verify tokens, then the others, whose form may be another.
struct StepPlaces {
  DotPlaces decode;
  DotPlaces prefill;

  int64_t tokens() const { return decode.tokens + prefill.tokens; }
  int64_t bytes() const { return decode.bytes() + prefill.bytes(); }
  const DotPlaces& of(int64_t token) const { return token < decode.tokens ? decode : prefill; }
  int64_t at(int64_t token) const {
    return token < decode.tokens ? decode.at(token) : decode.bytes() + prefill.at(token - decode.tokens);
  }
  // Tokens from `first` on, at most kDotTokens, that have one form.
  int64_t run(int64_t first) const {
    return std::min(kDotTokens, (first < decode.tokens ? decode.tokens : tokens()) - first);
  }
};

// Rows [first, first + count) of a matrix.
DotRows dot_rows(const numeric::EncodedMatrix& matrix, int64_t first, int64_t count);

// Asks for the start of rows that are read soon; further on a kernel asks itself.
void prefetch_start(const DotRows& rows);

// The global scale of a matrix, 1 where the format has none.
inline float dot_scale(const numeric::EncodedMatrix& matrix) {
  return matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
}

// Bytes of n weights.
inline int64_t dot_bytes(numeric::WeightFormat format, int64_t n) {
  if (format == numeric::WeightFormat::kNvfp4) return n / 2 + n / 16;
  return format == numeric::WeightFormat::kF32 ? 4 * n : 2 * n;
}

// Fewest blocks of kDotRowBlock rows worth a thread of their own, given the multiply-adds and the bytes of weights of a
// row: either takes some microseconds, the bytes from DRAM.
inline int64_t block_grain(int64_t macs_per_row, int64_t bytes_per_row) {
  constexpr int64_t kMacsPerPiece = 150'000, kBytesPerPiece = 32'000;
  const int64_t rows = std::min(kMacsPerPiece / macs_per_row, kBytesPerPiece / bytes_per_row);
  return std::max<int64_t>(1, rows / kDotRowBlock);
}

}  // namespace assay::ops
