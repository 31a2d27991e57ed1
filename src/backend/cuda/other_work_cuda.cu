// Uneven load, copies by the multiprocessors and fills, in turn on a second stream, from a thread that waits for each.
#include "backend/cuda/other_work_cuda.h"

#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "backend/cuda/launch.h"
#include "device/device_cuda.h"

namespace assay::cuda {
namespace {

constexpr size_t kBytes = size_t{32} << 20;  // of each of two halves
constexpr int kSchedulers = 4;               // of a multiprocessor
constexpr int kThreads = 256;                // two warps a scheduler, and registers to spare beside the largest row
constexpr long long kClocks = 100'000;       // about 55 us

// Keeps one scheduler of every multiprocessor busy; a block's warps lie on them in turn. Warps of a row on that
// scheduler fall behind those on the others: what is read too early or overwritten too soon for want of a barrier shows
// then.
__global__ void __launch_bounds__(kThreads) uneven_load(int scheduler, float* sink) {
  if (static_cast<int>(threadIdx.x) / 32 % kSchedulers != scheduler) return;
  float sums[4] = {1, 2, 3, static_cast<float>(threadIdx.x)};
  for (const long long begin = clock64(); clock64() - begin < kClocks;) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
#pragma unroll
      for (float& sum : sums) sum = fmaf(sum, 0.5f, 1.0f);
    }
  }
  if (sums[0] + sums[1] + sums[2] + sums[3] == 0) *sink = 0;  // never, but the compiler cannot know
}

class CudaOtherWork : public backend::OtherWork {
 public:
  explicit CudaOtherWork(device::Buffer memory) : memory_(std::move(memory)) {
    check(cudaGetDevice(&index_), "cudaGetDevice");  // the one that memory was just allocated on
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index_), "cudaDeviceGetAttribute");
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
    for (unsigned round = 0; !stop_; ++round) {
      if (round % 2 == 0) {  // a block a multiprocessor, or two
        launch("uneven load", uneven_load, dim3(multiprocessors_ * (1 + round / 8 % 2)), kThreads, 0, stream,
               static_cast<int>(round / 2 % kSchedulers), reinterpret_cast<float*>(first));
      } else if (round % 6 == 5) {
        check(cudaMemsetAsync(first, static_cast<int>(round), kBytes, stream_), "cudaMemsetAsync");
      } else {
        device::enqueue_copy(stream, first + kBytes, first, kBytes);
      }
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
  }

  device::Buffer memory_;
  int index_ = 0, multiprocessors_ = 0;
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
