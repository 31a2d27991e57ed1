// conv_gates in AVX2; kernel: ops/vector_kernels_avx2.cc.
#include "ops/conv_gates/conv_gates_cpu_vector.h"

namespace assay::ops {

const Impl<ConvGatesOp> kConvGatesCpuAvx2 = conv_gates_cpu_vector<kCpuVectorAvx2>();

}  // namespace assay::ops
