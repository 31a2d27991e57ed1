#include "base/nice.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace assay {

Result<void> set_nice(int nice, const char* flag) {
  // Linux: 0 is the calling thread, not its process.
  if (setpriority(PRIO_PROCESS, 0, nice) == 0) return {};
  const std::string why = std::strerror(errno);
  rlimit most = {};
  getrlimit(RLIMIT_NICE, &most);
  const int current = getpriority(PRIO_PROCESS, 0);
  const int least = most.rlim_cur == RLIM_INFINITY ? -20 : std::min(20 - static_cast<int>(most.rlim_cur), current);
  return Error{ErrorKind::kInvalidArgument,
               "the system refuses this nice value: " + why,
               flag,
               std::to_string(nice),
               fmt::format("{} to 19", least),
               "less needs CAP_SYS_NICE, or a higher limit: ulimit -e, LimitNICE of systemd, --ulimit nice of docker"};
}

}  // namespace assay
