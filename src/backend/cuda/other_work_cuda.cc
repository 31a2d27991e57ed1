// Copies by the multiprocessors and fills, one after the other on a second stream, from a thread that waits for each.
#include "backend/cuda/other_work_cuda.h"

#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "backend/cuda/launch.h"
#include "device/device_cuda.h"

namespace assay::cuda {
namespace {

constexpr size_t kBytes = size_t{32} << 20;  // of each of two halves

class CudaOtherWork : public backend::OtherWork {
 public:
  explicit CudaOtherWork(device::Buffer memory) : memory_(std::move(memory)) {
    check(cudaGetDevice(&index_), "cudaGetDevice");  // the one that memory was just allocated on
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    thread_ = std::thread([this] { run(); });
  }
  ~CudaOtherWork() override {
    stop_ = true;
    thread_.join();
    cudaStreamDestroy(stream_);
  }

 private:
  void run() {
    check(cudaSetDevice(index_), "cudaSetDevice");
    const device::Stream stream{device::Backend::kCuda, stream_};
    auto* const first = static_cast<std::byte*>(memory_.data());
    for (int round = 0; !stop_; ++round) {
      if (round % 3 == 2) {
        check(cudaMemsetAsync(first, round, kBytes, stream_), "cudaMemsetAsync");
      } else {
        device::enqueue_copy(stream, first + kBytes, first, kBytes);
      }
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
  }

  device::Buffer memory_;
  int index_ = 0;
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<backend::OtherWork> start_other_work(device::Device& device) {
  auto memory = device.allocate(2 * kBytes);
  return memory.ok() ? std::make_unique<CudaOtherWork>(std::move(memory).value()) : nullptr;
}

}  // namespace assay::cuda
