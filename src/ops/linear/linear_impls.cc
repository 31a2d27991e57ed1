#include <fmt/format.h>

#include "ops/linear/linear_rows.h"
#include "ops/refusals.h"

namespace assay::ops {
std::string describe(const LinearDesc& desc) {
  return fmt::format("n={} k={} {} {} {}->{}", desc.n, desc.k, numeric::weight_format_name(desc.format),
                     lane_name(desc.lane), dtype_name(desc.activation), dtype_name(desc.output));
}

Refusal refuse_weight_only(const LinearDesc& desc) {
  if (desc.output != DType::kF32 && desc.output != desc.activation) return "output must be f32 or the activation dtype";
  return refuse_weight_only(desc.format, desc.lane, desc.activation, desc.k);
}

std::span<const Impl<LinearOp>> LinearOp::impls() {
  static const Impl<LinearOp> rows[] = {
#if ASSAY_WITH_CUDA
    kLinearCublaslt,
    kLinearCudaPhased,
    kLinearCudaGemv,
    kLinearCudaGemm,
    kLinearCudaReference,
#endif
    kLinearCpuAvx512Phased,
    kLinearCpuAvx512,
    kLinearCpuAvx512Bf16,
    kLinearCpuAvx2Phased,
    kLinearCpuAvx2,
    kLinearCpuPortable,
    kLinearReference,
  };
  return rows;
}

}  // namespace assay::ops
