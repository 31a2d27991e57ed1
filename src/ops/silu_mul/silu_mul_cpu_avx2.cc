// silu_mul in AVX2; kernel: ops/vector_kernels_avx2.cc.
#include "ops/silu_mul/silu_mul_cpu_vector.h"

namespace assay::ops {

const Impl<SiluMulOp> kSiluMulCpuAvx2 = silu_mul_cpu_vector<kCpuVectorAvx2>();

}  // namespace assay::ops
