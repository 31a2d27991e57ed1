#include "backend/cpu/simd_avx512.h"

namespace {
constexpr int kWide = 4;
}  // namespace

#include "ops/gated_delta/delta_kernels.h"

namespace assay::ops {

bool delta_run_avx512(const DeltaRun& run) { return delta_run(run); }

}  // namespace assay::ops
