// linear in AVX-512 fp32; kernel: ops/dot_kernels_avx512.cc.
#include "ops/linear/linear_cpu_dot.h"

namespace assay::ops {

const Impl<LinearOp> kLinearCpuAvx512 = linear_cpu_dot<kCpuAvx512>();
const Impl<LinearOp> kLinearCpuAvx512Phased = linear_cpu_dot<kCpuAvx512Phased>();

}  // namespace assay::ops
