#include "backend/make_device.h"

#include <charconv>

#include "backend/cpu/cpu_device.h"
#include "backend/versions.h"
#if ASSAY_WITH_CUDA
#include "device/device_cuda.h"
#endif

namespace assay::backend {
namespace {

constexpr std::string_view kGpu = "cuda";

Result<std::unique_ptr<device::Device>> make_gpu([[maybe_unused]] int index) {
#if ASSAY_WITH_CUDA
  return device::make_cuda_device(index);
#else
  return Error{ErrorKind::kUnsupported,       "this build runs on CPUs only", "--device", std::string(kGpu), "cpu",
               "build with make build CUDA=1"};
#endif
}

}  // namespace

Result<std::unique_ptr<device::Device>> make_device(const std::string& name, int threads) {
  if (name == "cpu") return cpu::make_cpu_device(threads);
  if (name == kGpu) return make_gpu(0);
  if (name.starts_with(std::string(kGpu) + ":")) {
    const char* digits = name.data() + kGpu.size() + 1;
    int index = -1;
    const auto [end, failed] = std::from_chars(digits, name.data() + name.size(), index);
    if (failed == std::errc{} && end == name.data() + name.size() && index >= 0) return make_gpu(index);
  }
  return Error{ErrorKind::kInvalidArgument, "unknown device", "--device", name, "cpu, cuda or cuda:INDEX", ""};
}

std::vector<std::string> describe_machine([[maybe_unused]] device::Backend backend) {
  std::vector<std::string> lines;
#if ASSAY_WITH_CUDA
  if (backend == device::Backend::kCuda) {
    for (const device::GpuInfo& gpu : device::find_gpus().gpus) lines.push_back(gpu.text());
    lines.push_back(versions_below(backend));
  }
#endif
  return lines;
}

}  // namespace assay::backend
