#include <cuda_runtime.h>

#include "device/probe_cuda.h"

namespace assay::device {
namespace {

__global__ void probe() {}

}  // namespace

bool cuda_code_present(int index) {
  cudaFuncAttributes attributes;
  const bool present = cudaSetDevice(index) == cudaSuccess && cudaFuncGetAttributes(&attributes, probe) == cudaSuccess;
  cudaGetLastError();
  return present;
}

}  // namespace assay::device
