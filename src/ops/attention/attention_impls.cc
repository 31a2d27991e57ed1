#include "ops/attention/attention_rows.h"

namespace assay::ops {

std::string describe(const AttentionDesc& desc) {
  return fmt::format("heads={} kv_heads={} head_dim={} scale={} gate={} act={} cache={}", desc.heads, desc.kv_heads,
                     desc.head_dim, desc.scale, desc.output_gate, dtype_name(desc.activation), dtype_name(desc.cache));
}

std::span<const Impl<AttentionOp>> AttentionOp::impls() {
  static const Impl<AttentionOp> rows[] = {
#if ASSAY_WITH_CUDA
    kAttentionCudaPrefill,
    kAttentionCudaSplit,
    kAttentionCudaReference,
#endif
    kAttentionCpuAvx512,
    kAttentionCpuAvx2,
    kAttentionCpuPortable,
    kAttentionReference,
  };
  return rows;
}

}  // namespace assay::ops
