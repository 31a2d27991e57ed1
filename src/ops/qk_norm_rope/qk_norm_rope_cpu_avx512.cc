// qk_norm_rope in AVX-512; kernel: ops/vector_kernels_avx512.cc.
#include "ops/qk_norm_rope/qk_norm_rope_cpu_vector.h"

namespace assay::ops {

const Impl<QkNormRopeOp> kQkNormRopeCpuAvx512 = qk_norm_rope_cpu_vector<kCpuVectorAvx512>();

}  // namespace assay::ops
