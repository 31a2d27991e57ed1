// linear by vdpbf16ps; kernel: ops/dot_kernels_avx512_bf16.cc.
#include "ops/linear/linear_cpu_dot.h"

namespace assay::ops {

const Impl<LinearOp> kLinearCpuAvx512Bf16 = linear_cpu_dot<kCpuAvx512Bf16>();

}  // namespace assay::ops
