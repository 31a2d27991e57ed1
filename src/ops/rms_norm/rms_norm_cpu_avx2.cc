// rms_norm in AVX2; kernel: ops/vector_kernels_avx2.cc.
#include "ops/rms_norm/rms_norm_cpu_vector.h"

namespace assay::ops {

const Impl<RmsNormOp> kRmsNormCpuAvx2 = rms_norm_cpu_vector<kCpuVectorAvx2>();

}  // namespace assay::ops
