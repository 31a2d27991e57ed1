#include "ops/conv_gates/conv_gates_rows.h"

namespace assay::ops {

std::string describe(const ConvGatesDesc& desc) {
  return fmt::format("key_heads={} value_heads={} key_dim={} value_dim={} width={} act={}", desc.key_heads,
                     desc.value_heads, desc.key_dim, desc.value_dim, desc.width, dtype_name(desc.activation));
}

std::span<const Impl<ConvGatesOp>> ConvGatesOp::impls() {
  static const Impl<ConvGatesOp> rows[] = {
#if ASSAY_WITH_CUDA
    kConvGatesCudaHead,
    kConvGatesCudaReference,
#endif
    kConvGatesCpuAvx512,
    kConvGatesCpuAvx2,
    kConvGatesCpuPortable,
    kConvGatesReference,
  };
  return rows;
}

}  // namespace assay::ops
