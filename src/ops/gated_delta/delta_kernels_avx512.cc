#include "backend/cpu/simd_avx512.h"
#include "ops/gated_delta/delta_kernels.h"

namespace assay::ops {

void delta_step_avx512(const DeltaStep& step) { delta_step(step); }

}  // namespace assay::ops
