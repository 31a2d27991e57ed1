#include "backend/limits.h"

#include "backend/cpu/limits.h"
#if ASSAY_WITH_CUDA
#include "backend/cuda/limits_cuda.h"
#endif

namespace assay::backend {
namespace {

Limits of_cpu(device::Device& device) {
  const cpu::Limits measured = cpu::measure_limits(cpu::pool_of(device.stream()), device.caps());
  return {{{"dram_read_bytes_per_s", "DRAM read (5x the cache)", measured.dram_read},
           {"dram_copy_bytes_per_s", "DRAM copy (read + written)", measured.dram_copy},
           {"l3_read_bytes_per_s", "last-level cache read", measured.l3_read},
           {"fma_portable_flop_per_s", "fp32 multiply, add (portable)", measured.fma_portable, true},
           {"fma_avx2_flop_per_s", "fp32 multiply-add, AVX2", measured.fma_avx2, true},
           {"fma_avx512_flop_per_s", "fp32 multiply-add, AVX-512", measured.fma_avx512, true},
           {"dot_avx512_bf16_flop_per_s", "bf16 dot, AVX-512", measured.dot_avx512_bf16, true}},
          measured.cache_bytes,
          measured.dram_read,
          measured.l3_read,
          measured.best_flops()};
}

#if ASSAY_WITH_CUDA
Result<Limits> of_gpu(device::Device& device) {
  ASSAY_ASSIGN(const cuda::Limits measured, cuda::measure_limits(device));
  return Limits{{{"copy_bytes_per_s", "memory copy (read + written)", measured.copy},
                 {"mma_bf16_flop_per_s", "bf16 mma.sync", measured.mma_bf16, true}},
                device.caps().cache_bytes,
                measured.copy,
                0,
                measured.mma_bf16};
}
#endif

}  // namespace

Result<Limits> measure_limits(device::Device& device) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) return of_gpu(device);
#endif
  return of_cpu(device);
}

}  // namespace assay::backend
