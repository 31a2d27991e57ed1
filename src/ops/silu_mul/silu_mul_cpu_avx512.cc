// silu_mul in AVX-512; kernel: ops/vector_kernels_avx512.cc.
#include "ops/silu_mul/silu_mul_cpu_vector.h"

namespace assay::ops {

const Impl<SiluMulOp> kSiluMulCpuAvx512 = silu_mul_cpu_vector<kCpuVectorAvx512>();

}  // namespace assay::ops
