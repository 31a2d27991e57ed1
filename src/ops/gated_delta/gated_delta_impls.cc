#include "ops/gated_delta/gated_delta_rows.h"

namespace assay::ops {

std::string describe(const GatedDeltaDesc& desc) {
  return fmt::format("key_heads={} value_heads={} key_dim={} value_dim={} act={}", desc.key_heads, desc.value_heads,
                     desc.key_dim, desc.value_dim, dtype_name(desc.activation));
}

std::span<const Impl<GatedDeltaOp>> GatedDeltaOp::impls() {
  static const Impl<GatedDeltaOp> rows[] = {
#if ASSAY_WITH_CUDA
    kGatedDeltaCudaChunk,
    kGatedDeltaCudaRecurrent,
    kGatedDeltaCudaReference,
#endif
    kGatedDeltaCpuAvx512,
    kGatedDeltaCpuAvx2,
    kGatedDeltaCpuPortable,
    kGatedDeltaReference,
  };
  return rows;
}

}  // namespace assay::ops
