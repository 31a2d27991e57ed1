// conv_gates in plain C++; kernel: ops/vector_kernels_portable.cc.
#include "ops/conv_gates/conv_gates_cpu_vector.h"

namespace assay::ops {

const Impl<ConvGatesOp> kConvGatesCpuPortable = conv_gates_cpu_vector<kCpuVectorPortable>();

}  // namespace assay::ops
