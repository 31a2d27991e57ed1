#include <fmt/format.h>

#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {

std::string describe(const SiluMulDesc& desc) {
  return fmt::format("width={} {}", desc.width, dtype_name(desc.activation));
}

std::span<const Impl<SiluMulOp>> SiluMulOp::impls() {
  static const Impl<SiluMulOp> rows[] = {
#if ASSAY_WITH_CUDA
    kSiluMulCudaElementwise,
    kSiluMulCudaReference,
#endif
    kSiluMulCpuAvx512,
    kSiluMulCpuAvx2,
    kSiluMulCpuPortable,
    kSiluMulReference,
  };
  return rows;
}

}  // namespace assay::ops
