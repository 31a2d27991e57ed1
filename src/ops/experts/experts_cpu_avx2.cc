// experts in AVX2 with FMA; kernel: ops/dot_kernels_avx2.cc.
#include "ops/experts/experts_cpu_dot.h"

namespace assay::ops {

const Impl<ExpertsOp> kExpertsCpuAvx2 = experts_cpu_dot<kCpuAvx2>();
const Impl<ExpertsOp> kExpertsCpuAvx2Phased = experts_cpu_dot<kCpuAvx2Phased>();

}  // namespace assay::ops
