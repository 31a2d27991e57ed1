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
  bool pairs;  // vdpbf16ps: bf16 activations, bf16 and nvfp4 weights
  bool (*has)(const device::CpuFeatures&);
  const char* missing;  // the refusal where has() is false

  DotForm form(numeric::WeightFormat format) const {
    if (!pairs) return DotForm::kF32;
    return format == numeric::WeightFormat::kNvfp4 ? DotForm::kBf16Planes : DotForm::kBf16;
  }
  Refusal refuse(numeric::WeightFormat format, DType activation, const DeviceCaps& caps) const;
  // What the dot products add up like, as part of an op's order: "dot16 exact", ...
  std::string_view order(numeric::WeightFormat format, DType activation) const;
};

// Constant-initialised: rows are made of them before main.
extern const CpuDot kCpuAvx2;
extern const CpuDot kCpuAvx512;
extern const CpuDot kCpuAvx512Bf16;

// Row `token` of activations [T, k] in a form, at out.
void prepare_token(DotForm form, const ConstView& x, int64_t token, int64_t k, std::byte* out);

// All tokens, dot_form_bytes(form, k) apart; over the pool's threads where it is worth it.
void prepare_tokens(DotForm form, const ConstView& x, int64_t tokens, int64_t k, std::byte* out, cpu::ThreadPool& pool);

// Rows [first, first + count) of a matrix.
DotRows dot_rows(const numeric::EncodedMatrix& matrix, int64_t first, int64_t count);

// The global scale of a matrix, 1 where the format has none.
inline float dot_scale(const numeric::EncodedMatrix& matrix) {
  return matrix.format == numeric::WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
}

// Fewest blocks of kDotRowBlock rows worth a thread of their own, given the multiply-adds of a row: some microseconds.
inline int64_t block_grain(int64_t macs_per_row) {
  constexpr int64_t kMacsPerPiece = 150'000;
  return std::max<int64_t>(1, kMacsPerPiece / (macs_per_row * kDotRowBlock));
}

}  // namespace assay::ops
