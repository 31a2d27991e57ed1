#include "backend/cpu/simd_avx2.h"

namespace assay::ops {
namespace simd = cpu;
}

#include "ops/vector_kernels.h"

namespace assay::ops {

constinit const VectorKernels kVectorKernelsAvx2 = kernels();

}  // namespace assay::ops
