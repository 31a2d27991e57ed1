// experts by vdpbf16ps; kernel: ops/dot_kernels_avx512_bf16.cc.
#include "ops/experts/experts_cpu_dot.h"

namespace assay::ops {

const Impl<ExpertsOp> kExpertsCpuAvx512Bf16 = experts_cpu_dot<kCpuAvx512Bf16>();

}  // namespace assay::ops
