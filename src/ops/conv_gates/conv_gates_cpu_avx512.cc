// conv_gates in AVX-512; kernel: ops/vector_kernels_avx512.cc.
#include "ops/conv_gates/conv_gates_cpu_vector.h"

namespace assay::ops {

const Impl<ConvGatesOp> kConvGatesCpuAvx512 = conv_gates_cpu_vector<kCpuVectorAvx512>();

}  // namespace assay::ops
