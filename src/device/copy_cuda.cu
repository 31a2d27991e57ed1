// A copy by the multiprocessors: 16 bytes a thread and step, four in flight. (The copy engines that cudaMemcpyAsync
// uses in a graph reach only two thirds of an H200's bandwidth.)
#include <cuda_runtime.h>

#include "device/device_cuda.h"

namespace assay::device {
namespace {

constexpr int kThreads = 512;
constexpr int kSteps = 4;

__global__ void __launch_bounds__(kThreads) copy(uint4* to, const uint4* from, int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kSteps + threadIdx.x;
  uint4 values[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (first + i * kThreads < count) values[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (first + i * kThreads < count) to[first + i * kThreads] = values[i];
  }
}

}  // namespace

void enqueue_copy(const Stream& stream, void* to, const void* from, size_t bytes) {
  CHECK(bytes % 16 == 0, "{} bytes", bytes);
  const auto count = static_cast<int64_t>(bytes / 16);
  const int64_t blocks = (count + kThreads * kSteps - 1) / (kThreads * kSteps);
  copy<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), count);
  const cudaError_t status = cudaGetLastError();
  CHECK(status == cudaSuccess, "CUDA: copy: {}", cudaGetErrorString(status));
}

}  // namespace assay::device
