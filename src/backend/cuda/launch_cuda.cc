#include <atomic>

#include "backend/cuda/launch.h"
#include "backend/cuda/launch_count_cuda.h"
#include "device/device_cuda.h"

namespace assay::cuda {
namespace {

std::atomic<uint64_t> launches{0};

}  // namespace

uint64_t launch_count() { return launches.load(std::memory_order_relaxed); }

void check(cudaError_t status, const char* what) {
  CHECK(status == cudaSuccess, "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void finish_launch(const char* kernel, cudaStream_t stream) {
  launches.fetch_add(1, std::memory_order_relaxed);
  check(cudaGetLastError(), kernel);
  if (!device::synchronous()) return;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capturing), kernel);
  if (capturing == cudaStreamCaptureStatusNone) check(cudaStreamSynchronize(stream), kernel);
}

}  // namespace assay::cuda
