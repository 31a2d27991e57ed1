#include "backend/cpu/simd_avx2.h"

namespace assay::ops {
namespace simd = cpu;
namespace {
using Doubles = double __attribute__((vector_size(32)));
}
}  // namespace assay::ops

#include "ops/vector_kernels.h"

namespace assay::ops {

constinit const VectorKernels kVectorKernelsAvx2 = kernels();

}  // namespace assay::ops
