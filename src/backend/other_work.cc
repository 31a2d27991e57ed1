#include "backend/other_work.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#if ASSAY_WITH_CUDA
#include "backend/cuda/other_work_cuda.h"
#endif

namespace assay::backend {
namespace {

class CpuOtherWork : public OtherWork {
 public:
  CpuOtherWork() : memory_((size_t{8} << 20) / sizeof(uint64_t)), thread_([this] { run(); }) {}
  ~CpuOtherWork() override {
    stop_ = true;
    thread_.join();
  }

 private:
  void run() {
    uint64_t random = 1;
    size_t at = 0;
    while (!stop_) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      const auto length_us = static_cast<int64_t>(20 + (random >> 33) % 280);
      for (const int64_t end = now_us() + length_us; now_us() < end && !stop_;) {
        for (int i = 0; i < 512; ++i, at = (at + 1) % memory_.size()) memory_[at] += random;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(length_us));
    }
  }

  std::vector<uint64_t> memory_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<OtherWork> start_other_work(device::Device& device) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) return cuda::start_other_work(device);
#endif
  return device.caps().backend == device::Backend::kCpu ? std::make_unique<CpuOtherWork>() : nullptr;
}

}  // namespace assay::backend
