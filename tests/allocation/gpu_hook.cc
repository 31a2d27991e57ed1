#include "allocation/gpu_hook.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

// Functions, declared without CUDA's headers: an error is an int, a handle a pointer.
#define GPU_MEMORY_CALLS(X)                                                           \
  X(cudaMalloc, (void** data, size_t bytes), (data, bytes))                           \
  X(cudaFree, (void* data), (data))                                                   \
  X(cudaMallocHost, (void** data, size_t bytes), (data, bytes))                       \
  X(cudaHostAlloc, (void** data, size_t bytes, unsigned flags), (data, bytes, flags)) \
  X(cudaFreeHost, (void* data), (data))                                               \
  X(cudaStreamCreateWithFlags, (void** stream, unsigned flags), (stream, flags))      \
  X(cudaGraphInstantiate, (void** executable, void* graph, unsigned long long flags), (executable, graph, flags))

#if ASSAY_WITH_CUDA
#define WATCH(name, parameters, arguments)        \
  static std::atomic<int64_t> calls_of_##name{0}; \
  extern "C" int __real_##name parameters;        \
  extern "C" int __wrap_##name parameters {       \
    ++calls_of_##name;                            \
    return __real_##name arguments;               \
  }
GPU_MEMORY_CALLS(WATCH)
#endif

namespace assay::testing {

std::string gpu_memory_calls() {
  std::string text;
#if ASSAY_WITH_CUDA
#define ADD(name, parameters, arguments) text += #name " " + std::to_string(calls_of_##name) + "\n";
  GPU_MEMORY_CALLS(ADD)
#endif
  return text;
}

}  // namespace assay::testing
