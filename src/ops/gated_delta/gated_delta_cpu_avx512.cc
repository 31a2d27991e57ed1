// gated_delta with the fused rule of delta_kernels_avx512.cc.
#include "ops/gated_delta/gated_delta_cpu_strips.h"

namespace assay::ops {
namespace {

struct Avx512 {
  static constexpr const char* kName = "cpu_avx512";
  static constexpr std::string_view kOrder = "gated_delta: token by token, keys rising, decay after the sum, fused";
  static constexpr const char* kMissing = "the CPU has no AVX-512 with BW, VL, DQ, VBMI and VNNI";
  static bool has(const device::CpuFeatures& cpu) { return cpu.avx512; }
  static constexpr int32_t kStrip = 64;
  static bool run(const DeltaRun& run) { return delta_run_avx512(run); }
};

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaCpuAvx512 = gated_delta_strips<Avx512>();

}  // namespace assay::ops
