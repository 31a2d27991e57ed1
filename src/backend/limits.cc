#include "backend/limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cpu/limits.h"
#include "base/check.h"
#if ASSAY_WITH_CUDA
#include "backend/cuda/limits_cuda.h"
#endif

namespace assay::backend {
namespace {

Limits of_cpu(device::Device& device) {
  const cpu::Limits measured = cpu::measure_limits(cpu::pool_of(device.stream()), device.caps());
  Limits limits;
  const auto add = [&](const char* key, const char* label, const cpu::Rate& rate, bool flops) {
    const char* unit = flops ? "flop_per_s" : "bytes_per_s";
    limits.figures.push_back({fmt::format("{}_{}", key, unit), label, rate.pass, flops, rate.burst});
  };
  add("dram_read", "DRAM read, pass over 5x the cache", measured.dram_read, false);
  add("dram_copy", "DRAM copy (read + written)", measured.dram_copy, false);
  add("l3_read", "last-level cache read", {measured.l3_read, measured.l3_read}, false);
  add("fma_portable", "fp32 multiply, add (portable)", measured.fma_portable, true);
  add("fma_avx2", "fp32 multiply-add, AVX2", measured.fma_avx2, true);
  add("fma_avx512", "fp32 multiply-add, AVX-512", measured.fma_avx512, true);
  add("dot_avx512_bf16", "bf16 dot, AVX-512", measured.dot_avx512_bf16, true);
  limits.cache_bytes = measured.cache_bytes;
  limits.memory = measured.dram_read.pass;
  limits.cache = measured.l3_read;
  limits.flops = measured.best_flops();
  return limits;
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

Limits best_of(Limits one, const Limits& other) {
  CHECK(one.figures.size() == other.figures.size(), "{} and {} figures", one.figures.size(), other.figures.size());
  for (size_t i = 0; i < one.figures.size(); ++i) {
    one.figures[i].value = std::max(one.figures[i].value, other.figures[i].value);
    one.figures[i].burst = std::max(one.figures[i].burst, other.figures[i].burst);
  }
  one.memory = std::max(one.memory, other.memory);
  one.cache = std::max(one.cache, other.cache);
  one.flops = std::max(one.flops, other.flops);
  return one;
}

Result<Limits> measure_limits(device::Device& device) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) return of_gpu(device);
#endif
  return of_cpu(device);
}

}  // namespace assay::backend
