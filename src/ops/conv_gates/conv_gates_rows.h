// The rows of conv_gates, and what none of them can run.
#pragma once

#include "ops/conv_gates/conv_gates.h"

namespace assay::ops {

extern const Impl<ConvGatesOp> kConvGatesReference;
extern const Impl<ConvGatesOp> kConvGatesCpuPortable;
extern const Impl<ConvGatesOp> kConvGatesCpuAvx2;
extern const Impl<ConvGatesOp> kConvGatesCpuAvx512;
extern const Impl<ConvGatesOp> kConvGatesCudaReference;
extern const Impl<ConvGatesOp> kConvGatesCudaHead;

inline Refusal refuse_conv_gates(const ConvGatesDesc& desc, const DeviceCaps&) {
  if (desc.activation != DType::kBf16 && desc.activation != DType::kF32) return "activations must be F32 or BF16";
  if (desc.key_heads <= 0 || desc.value_heads <= 0 || desc.key_dim <= 0 || desc.value_dim <= 0 || desc.width <= 0) {
    return "sizes must be positive";
  }
  if (desc.value_heads % desc.key_heads != 0) return "value_heads must be a multiple of key_heads";
  return {};
}

}  // namespace assay::ops
