// qk_norm_rope in AVX2; kernel: ops/vector_kernels_avx2.cc.
#include "ops/qk_norm_rope/qk_norm_rope_cpu_vector.h"

namespace assay::ops {

const Impl<QkNormRopeOp> kQkNormRopeCpuAvx2 = qk_norm_rope_cpu_vector<kCpuVectorAvx2>();

}  // namespace assay::ops
