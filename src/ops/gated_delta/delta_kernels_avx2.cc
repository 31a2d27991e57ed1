#include "backend/cpu/simd_avx2.h"
#include "ops/gated_delta/delta_kernels.h"

namespace assay::ops {

void delta_step_avx2(const DeltaStep& step) { delta_step(step); }

}  // namespace assay::ops
