#include <fmt/format.h>

#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {

std::string describe(const RmsNormDesc& desc) {
  return fmt::format("{} width={} groups={} eps={:g} {}",
                     desc.kind == NormKind::kZeroCentred ? "zero-centred"
                     : desc.sigmoid_gate                 ? "sigmoid-gated"
                                                         : "silu-gated",
                     desc.width, desc.groups, desc.eps, dtype_name(desc.activation));
}

std::span<const Impl<RmsNormOp>> RmsNormOp::impls() {
  static const Impl<RmsNormOp> rows[] = {
#if ASSAY_WITH_CUDA
    kRmsNormCudaBlock,
    kRmsNormCudaReference,
#endif
    kRmsNormCpuAvx512,
    kRmsNormCpuAvx2,
    kRmsNormCpuPortable,
    kRmsNormReference,
  };
  return rows;
}

}  // namespace assay::ops
