// rms_norm in plain C++; kernel: ops/vector_kernels_portable.cc.
#include "ops/rms_norm/rms_norm_cpu_vector.h"

namespace assay::ops {

const Impl<RmsNormOp> kRmsNormCpuPortable = rms_norm_cpu_vector<kCpuVectorPortable>();

}  // namespace assay::ops
