#include "backend/versions.h"

#include <sys/utsname.h>

#include <fstream>

#include <fmt/format.h>

#if ASSAY_WITH_CUDA
#include "backend/cublaslt/matmul_cublaslt.h"
#include "device/device_cuda.h"
#endif

namespace assay::backend {
namespace {

std::string microcode() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("microcode")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

#if ASSAY_WITH_CUDA
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...": the first word that starts with a digit.
std::string nvidia_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.front() >= '0' && word.front() <= '9') return word;
  }
  return "unknown";
}
#endif

}  // namespace

std::string versions_below(device::Backend backend) {
#if ASSAY_WITH_CUDA
  if (backend == device::Backend::kCuda) {
    return fmt::format("NVIDIA {} {} {}", nvidia_driver(), device::cuda_versions(), cublaslt::version_text());
  }
#endif
  if (backend != device::Backend::kCpu) return "";
  utsname name{};
  uname(&name);
  return fmt::format("{} {} microcode {}", name.sysname, name.release, microcode());
}

}  // namespace assay::backend
