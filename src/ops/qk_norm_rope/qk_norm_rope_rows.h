// The rows of qk_norm_rope, and what none of them can run.
#pragma once

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace assay::ops {

extern const Impl<QkNormRopeOp> kQkNormRopeReference;
extern const Impl<QkNormRopeOp> kQkNormRopeCpuPortable;
extern const Impl<QkNormRopeOp> kQkNormRopeCpuAvx2;
extern const Impl<QkNormRopeOp> kQkNormRopeCpuAvx512;
extern const Impl<QkNormRopeOp> kQkNormRopeCudaWarp;
extern const Impl<QkNormRopeOp> kQkNormRopeCudaReference;

inline Refusal refuse_qk_norm_rope(const QkNormRopeDesc& desc, const DeviceCaps&) {
  const auto stored = [](DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF32; };
  if (!stored(desc.activation) || !stored(desc.cache)) return "activations and cache must be F32 or BF16";
  if (desc.heads <= 0 || desc.kv_heads <= 0 || desc.head_dim <= 0) return "sizes must be positive";
  if (desc.rotary_dim < 0 || desc.rotary_dim % 2 != 0 || desc.rotary_dim > desc.head_dim) {
    return "rotary_dim must be even and at most head_dim";
  }
  return {};
}

}  // namespace assay::ops
