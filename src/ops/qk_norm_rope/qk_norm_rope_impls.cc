#include "ops/qk_norm_rope/qk_norm_rope_rows.h"

namespace assay::ops {

std::string describe(const QkNormRopeDesc& desc) {
  return fmt::format("heads={} kv_heads={} head_dim={} rotary_dim={} theta={} eps={} gate={} act={} cache={}",
                     desc.heads, desc.kv_heads, desc.head_dim, desc.rotary_dim, desc.theta, desc.eps, desc.output_gate,
                     dtype_name(desc.activation), dtype_name(desc.cache));
}

std::span<const Impl<QkNormRopeOp>> QkNormRopeOp::impls() {
  static const Impl<QkNormRopeOp> rows[] = {
#if ASSAY_WITH_CUDA
    kQkNormRopeCudaWarp,
    kQkNormRopeCudaReference,
#endif
    kQkNormRopeCpuAvx512,
    kQkNormRopeCpuAvx2,
    kQkNormRopeCpuPortable,
    kQkNormRopeReference,
  };
  return rows;
}

}  // namespace assay::ops
