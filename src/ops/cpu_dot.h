// The instruction sets of dot_kernel.h as rows use them: names, refusals, orders of additions, and activations in the
// form a kernel wants.
#pragma once

#include <algorithm>

#include "backend/cpu/thread_pool.h"
#include "ops/dot_kernel.h"
#include "ops/dot_order.h"
#include "ops/impl.h"

namespace assay::ops {

struct CpuDot {
  const char* row;  // name of the rows made of it
  DotFunction dot;
  DotForm packed_form;  // of nvfp4 weights; kF32 or kBf16 of others
  bool pairs;           // vdpbf16ps: bf16 activations, bf16 and nvfp4 weights
  bool (*has)(const device::CpuFeatures&);
  const char* missing;  // the refusal where has() is false

  DotForm form(numeric::WeightFormat format) const {
    if (format == numeric::WeightFormat::kNvfp4) return packed_form;
    return pairs ? DotForm::kBf16 : DotForm::kF32;
  }
  Refusal refuse(numeric::WeightFormat format, DType activation, const DeviceCaps& caps) const;
  // What the dot products add up like, as part of an op's order: "dot16 exact", ...
  std::string_view order(numeric::WeightFormat format, DType activation) const;
};

// Constant-initialised: rows are made of them before main.
extern const CpuDot kCpuAvx2;
extern const CpuDot kCpuAvx512;
extern const CpuDot kCpuAvx512Bf16;

// Where the activations of `tokens` tokens lie when they are prepared for a kernel.
struct DotPlaces {
  DotForm form;
  int64_t tokens;
  int64_t k;

  bool f32() const { return form == DotForm::kF32 || form == DotForm::kF32Quads; }
  // Elements of a token's block, and blocks of a token.
  int64_t block() const { return f32() ? kDotBlock : padded(form == DotForm::kBf16 ? 32 : 128); }
  int64_t blocks() const { return f32() ? padded(kDotBlock) / kDotBlock : 1; }
  int64_t block_bytes() const { return block() * (f32() ? 4 : 2); }
  int64_t block_stride() const { return tokens * block_bytes(); }
  int64_t bytes() const { return blocks() * block_stride(); }
  // Elements of a token that a kernel may read, the last ones zero.
  int64_t elements() const { return f32() ? padded(16) : block(); }
  // Offset of element i of a token, in bytes.
  int64_t at(int64_t token, int64_t i = 0) const {
    if (form == DotForm::kBf16) return token * block_bytes() + 2 * i;
    if (form == DotForm::kBf16Planes) return token * block_bytes() + 2 * (i / 128 * 128 + i % 4 * 32 + i % 128 / 4);
    const int64_t within = form == DotForm::kF32 ? i % 16 : i % 4 * 4 + i % 16 / 4;
    return i / kDotBlock * block_stride() + token * block_bytes() + 4 * (i % kDotBlock / 16 * 16 + within);
  }

 private:
  int64_t padded(int64_t step) const { return (k + step - 1) / step * step; }
};

// All tokens of activations [T, k] to out; over the pool's threads where it is worth it.
void prepare_tokens(const DotPlaces& places, const ConstView& x, std::byte* out, cpu::ThreadPool& pool);

// Rows [first, first + count) of a matrix.
DotRows dot_rows(const numeric::EncodedMatrix& matrix, int64_t first, int64_t count);

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
