#include "backend/make_device.h"

#include <vector>

#include <gtest/gtest.h>

namespace assay::backend {
namespace {

TEST(MakeDevice, MakesTheCpuWithAsManyThreadsAsAsked) {
  const auto device = make_device("cpu", 3);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->caps().backend, device::Backend::kCpu);
  EXPECT_EQ((*device)->caps().multiprocessors, 3);
  EXPECT_TRUE(describe_machine(device::Backend::kCpu).empty());
}

TEST(MakeDevice, FillsLargeMemoryAsAskedAndNothingBeyond) {
  for (const int threads : {1, 3}) {
    const auto device = std::move(make_device("cpu", threads)).value();
    constexpr size_t kBytes = (size_t{20} << 20) + 11;
    std::vector<std::byte> memory(kBytes + 2, std::byte{1}), wanted(kBytes + 2, std::byte{0xFF});
    wanted.front() = wanted.back() = std::byte{1};
    device->fill(memory.data() + 1, 0xFF, kBytes);
    EXPECT_TRUE(memory == wanted) << threads;
  }
}

TEST(MakeDevice, RefusesWhatItDoesNotKnow) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    const auto device = make_device(name, 1);
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.error().kind, ErrorKind::kInvalidArgument) << name;
    EXPECT_EQ(device.error().got, name);
  }
}

}  // namespace
}  // namespace assay::backend
