#include "backend/cpu/simd_portable.h"

namespace assay::ops {
namespace simd = cpu::portable;
}

#include "ops/vector_kernels.h"

namespace assay::ops {

constinit const VectorKernels kVectorKernelsPortable = kernels();

}  // namespace assay::ops
