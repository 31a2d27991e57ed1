#include "backend/versions.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

namespace assay::backend {
namespace {

TEST(Versions, NameTheKernelAndTheMicrocode) {
  utsname name{};
  ASSERT_EQ(uname(&name), 0);
  const std::string versions = versions_below(device::Backend::kCpu);
  EXPECT_NE(versions.find(name.release), std::string::npos) << versions;
  EXPECT_NE(versions.find("microcode"), std::string::npos) << versions;
}

}  // namespace
}  // namespace assay::backend
