#include "backend/cpu/limits.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/limits_kernel.h"

namespace assay::cpu {
namespace {

TEST(Limits, EveryFigureIsMeasured) {
  ThreadPool pool(2);
  device::DeviceCaps caps;
  caps.cpu = detect_features();
  caps.cache_bytes = size_t{1} << 20;  // a quick run
  const Limits limits = measure_limits(pool, caps);
  EXPECT_EQ(limits.threads, 2);
  EXPECT_EQ(limits.cache_bytes, size_t{8} << 20);
  for (const Rate& rate : {limits.dram_read, limits.dram_copy, limits.fma_portable}) {
    EXPECT_GT(rate.pass, 1e8);
    EXPECT_GE(rate.burst, rate.pass);  // of its parts one is no slower than the whole
    EXPECT_LT(rate.burst, 1e14);
  }
  EXPECT_GT(limits.l3_read, 1e8);
  EXPECT_EQ(limits.fma_avx2.pass > 0, caps.cpu.avx2);
  EXPECT_EQ(limits.fma_avx512.pass > 0, caps.cpu.avx512);
  EXPECT_EQ(limits.dot_avx512_bf16.pass > 0, caps.cpu.avx512_bf16);
  EXPECT_GE(limits.best_flops(), limits.fma_avx2.pass);
}

// Every byte reaches the result.
TEST(Limits, ReadsReadEverything) {
  const device::CpuFeatures cpu = detect_features();
  std::vector<std::byte> bytes(4096 + 64, std::byte{0});
  auto* data = bytes.data();
  while (reinterpret_cast<uintptr_t>(data) % 64 != 0) ++data;
  data[1024] = std::byte{5};
  EXPECT_NE(read_portable(data, 4096), 0u);
  if (cpu.avx2) {
    EXPECT_NE(read_avx2(data, 4096), 0u);
  }
  if (cpu.avx512) {
    EXPECT_NE(read_avx512(data, 4096), 0u);
  }
}

}  // namespace
}  // namespace assay::cpu
