#include "base/nice.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace assay {
namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, 0); }

TEST(SetNice, HoldsForTheThreadAndThoseItStarts) {
  const int before = nice_of_this_thread();
  const int wanted = std::min(before + 3, 19);
  std::thread([&] {
    ASSERT_TRUE(set_nice(wanted, "--nice").ok());
    EXPECT_EQ(nice_of_this_thread(), wanted);
    std::thread([&] { EXPECT_EQ(nice_of_this_thread(), wanted); }).join();
  }).join();
  EXPECT_EQ(nice_of_this_thread(), before);
}

// In a child, which may do less than its parent.
TEST(SetNice, SaysWhatTheSystemPermits) {
  constexpr uid_t kNobody = 65534;
  const auto refused = [&] {
    const rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NICE, &none) != 0 || setpriority(PRIO_PROCESS, 0, 19) != 0) std::_Exit(1);
    if (geteuid() == 0 && setuid(kNobody) != 0) std::_Exit(2);
    const auto done = set_nice(-5, "--nice");
    std::fputs(done.ok() ? "permitted" : done.error().message().c_str(), stderr);
    std::_Exit(0);
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(0),
              "--nice: the system refuses this nice value: Permission denied: got -5, wanted 19 to 19 .*CAP_SYS_NICE");
}

}  // namespace
}  // namespace assay
