// silu_mul in plain C++; kernel: ops/vector_kernels_portable.cc.
#include "ops/silu_mul/silu_mul_cpu_vector.h"

namespace assay::ops {

const Impl<SiluMulOp> kSiluMulCpuPortable = silu_mul_cpu_vector<kCpuVectorPortable>();

}  // namespace assay::ops
