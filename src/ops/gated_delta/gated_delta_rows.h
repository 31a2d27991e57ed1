// The rows of gated_delta, and what none of them can run.
#pragma once

#include "ops/gated_delta/gated_delta.h"

namespace assay::ops {

extern const Impl<GatedDeltaOp> kGatedDeltaReference;
extern const Impl<GatedDeltaOp> kGatedDeltaCpuPortable;
extern const Impl<GatedDeltaOp> kGatedDeltaCpuAvx2;
extern const Impl<GatedDeltaOp> kGatedDeltaCpuAvx512;
extern const Impl<GatedDeltaOp> kGatedDeltaCudaReference;
extern const Impl<GatedDeltaOp> kGatedDeltaCudaRecurrent;
extern const Impl<GatedDeltaOp> kGatedDeltaCudaChunk;

// Prefill in chunks of 64, products in three tf32 passes; decode and verify sequences as cuda_recurrent.
inline constexpr OrderId kGatedDeltaChunkOrder = order_id("gated_delta chunks of 64, 3 tf32 passes, decode by tokens");

inline Refusal refuse_gated_delta(const GatedDeltaDesc& desc, const DeviceCaps&) {
  if (desc.activation != DType::kBf16 && desc.activation != DType::kF32) return "activations must be F32 or BF16";
  if (desc.key_heads <= 0 || desc.value_heads <= 0 || desc.key_dim <= 0 || desc.value_dim <= 0) {
    return "sizes must be positive";
  }
  if (desc.value_heads % desc.key_heads != 0) return "value_heads must be a multiple of key_heads";
  return {};
}

}  // namespace assay::ops
