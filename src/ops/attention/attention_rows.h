// The rows of attention, and what none of them can run.
#pragma once

#include "ops/attention/attention.h"

namespace assay::ops {

extern const Impl<AttentionOp> kAttentionReference;
extern const Impl<AttentionOp> kAttentionCpuPortable;
extern const Impl<AttentionOp> kAttentionCpuAvx2;
extern const Impl<AttentionOp> kAttentionCpuAvx512;
extern const Impl<AttentionOp> kAttentionCudaReference;
extern const Impl<AttentionOp> kAttentionCudaSplit;
extern const Impl<AttentionOp> kAttentionCudaPrefill;

// Prefill tokens by 64 keys in 2 halves, weights rounded to bf16; decode and verify tokens as cuda_split.
inline constexpr OrderId kAttentionTilesOrder = order_id("attention 64 keys in 2 halves, decode by 64 splits");

inline Refusal refuse_attention(const AttentionDesc& desc, const DeviceCaps&) {
  const auto stored = [](DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF32; };
  if (!stored(desc.activation) || !stored(desc.cache)) return "activations and cache must be F32 or BF16";
  if (desc.heads <= 0 || desc.kv_heads <= 0 || desc.head_dim <= 0) return "sizes must be positive";
  if (desc.heads % desc.kv_heads != 0) return "heads must be a multiple of kv_heads";
  return {};
}

}  // namespace assay::ops
