// linear in AVX2 with FMA; kernel: ops/dot_kernels_avx2.cc.
#include "ops/linear/linear_cpu_dot.h"

namespace assay::ops {

const Impl<LinearOp> kLinearCpuAvx2 = linear_cpu_dot<kCpuAvx2>();
const Impl<LinearOp> kLinearCpuAvx2Phased = linear_cpu_dot<kCpuAvx2Phased>();

}  // namespace assay::ops
