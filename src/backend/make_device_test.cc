#include "backend/make_device.h"

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
