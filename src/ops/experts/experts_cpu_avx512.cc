// experts in AVX-512 fp32; kernel: ops/dot_kernels_avx512.cc.
#include "ops/experts/experts_cpu_dot.h"

namespace assay::ops {

const Impl<ExpertsOp> kExpertsCpuAvx512 = experts_cpu_dot<kCpuAvx512>();
const Impl<ExpertsOp> kExpertsCpuAvx512Phased = experts_cpu_dot<kCpuAvx512Phased>();

}  // namespace assay::ops
