// gated_delta with the fused rule of delta_kernels_avx2.cc.
#include "ops/gated_delta/gated_delta_cpu_strips.h"

namespace assay::ops {
namespace {

struct Avx2 {
  static constexpr const char* kName = "cpu_avx2";
  static constexpr std::string_view kOrder = "gated_delta: token by token, keys rising, decay after the sum, fused";
  static constexpr const char* kMissing = "the CPU has no AVX2 with FMA and F16C";
  static bool has(const device::CpuFeatures& cpu) { return cpu.avx2; }
  static constexpr int32_t kStrip = 32;
  static bool run(const DeltaRun& run) { return delta_run_avx2(run); }
};

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaCpuAvx2 = gated_delta_strips<Avx2>();

}  // namespace assay::ops
