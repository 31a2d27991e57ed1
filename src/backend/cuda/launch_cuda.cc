#include <cstdlib>
#include <string_view>

#include "backend/cuda/launch.h"

namespace assay::cuda {

void check(cudaError_t status, const char* what) {
  CHECK(status == cudaSuccess, "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

bool synchronous() {
  static const bool value = [] {
    const char* text = std::getenv("ASSAY_CUDA_SYNC");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return value;
}

void finish_launch(const char* kernel, cudaStream_t stream) {
  check(cudaGetLastError(), kernel);
  if (!synchronous()) return;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capturing), kernel);
  if (capturing == cudaStreamCaptureStatusNone) check(cudaStreamSynchronize(stream), kernel);
}

}  // namespace assay::cuda
