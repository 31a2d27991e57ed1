// qk_norm_rope in plain C++; kernel: ops/vector_kernels_portable.cc.
#include "ops/qk_norm_rope/qk_norm_rope_cpu_vector.h"

namespace assay::ops {

const Impl<QkNormRopeOp> kQkNormRopeCpuPortable = qk_norm_rope_cpu_vector<kCpuVectorPortable>();

}  // namespace assay::ops
