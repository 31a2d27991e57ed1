#include "backend/cpu/simd_avx2.h"

namespace {
constexpr int kWide = 2;
}  // namespace

#include "ops/gated_delta/delta_kernels.h"

namespace assay::ops {

bool delta_run_avx2(const DeltaRun& run) { return delta_run(run); }

}  // namespace assay::ops
