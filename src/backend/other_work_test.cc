#include "backend/other_work.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "backend/cpu/cpu_device.h"

namespace assay::backend {
namespace {

int64_t cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec * 1'000'000 + usage.ru_utime.tv_usec;
}

TEST(OtherWork, UsesTheProcessorsUntilItIsDestroyed) {
  const auto device = cpu::make_cpu_device(1);
  auto work = start_other_work(*device);
  ASSERT_NE(work, nullptr);
  const int64_t before = cpu_us();
  while (cpu_us() - before < 10'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  work.reset();  // joins: nothing runs on
}

}  // namespace
}  // namespace assay::backend
