// rms_norm in AVX-512; kernel: ops/vector_kernels_avx512.cc.
#include "ops/rms_norm/rms_norm_cpu_vector.h"

namespace assay::ops {

const Impl<RmsNormOp> kRmsNormCpuAvx512 = rms_norm_cpu_vector<kCpuVectorAvx512>();

}  // namespace assay::ops
