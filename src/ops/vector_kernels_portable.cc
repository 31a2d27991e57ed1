#include "backend/cpu/simd_portable.h"

namespace assay::ops {
namespace simd = cpu::portable;
namespace {
using Doubles = double __attribute__((vector_size(16)));
}
}  // namespace assay::ops

#include "ops/vector_kernels.h"

namespace assay::ops {

constinit const VectorKernels kVectorKernelsPortable = kernels();

}  // namespace assay::ops
