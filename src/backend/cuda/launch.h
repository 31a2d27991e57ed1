// Launching kernels with every error checked and named.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "device/device.h"

namespace assay::cuda {

// CHECKs, naming `what`; prints the op trace.
void check(cudaError_t status, const char* what);

inline cudaStream_t raw(const device::Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

// Checks the launch; outside graph capture, where device::synchronous(), its execution too.
void finish_launch(const char* kernel, cudaStream_t stream);

enum class Start : uint8_t {
  kAfter,    // when all work enqueued before has ended
  kOverlap,  // as soon as the kernel before lets it: the kernel must begin as overlap.cuh says
};

template <class... Parameters, class... Arguments>
void launch(const char* name, Start start, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            const device::Stream& stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = raw(stream);
  config.attrs = &attribute;
  config.numAttrs = start == Start::kOverlap ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
  finish_launch(name, raw(stream));
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            const device::Stream& stream, Arguments&&... arguments) {
  launch(name, Start::kAfter, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

constexpr unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace assay::cuda
