#include "allocation/gpu_hook.h"

#include <atomic>
#include <cstddef>

namespace assay::testing {
namespace {

std::atomic<int64_t> calls{0};

}  // namespace

int64_t gpu_memory_calls() { return calls; }

#if ASSAY_WITH_CUDA
// Declared without CUDA's headers: an error is an int, a handle a pointer.
#define WATCH(name, parameters, arguments) \
  int __real_##name parameters;            \
  int __wrap_##name parameters {           \
    ++calls;                               \
    return __real_##name arguments;        \
  }

extern "C" {
WATCH(cudaMalloc, (void** data, size_t bytes), (data, bytes))
WATCH(cudaFree, (void* data), (data))
WATCH(cudaMallocHost, (void** data, size_t bytes), (data, bytes))
WATCH(cudaHostAlloc, (void** data, size_t bytes, unsigned flags), (data, bytes, flags))
WATCH(cudaFreeHost, (void* data), (data))
WATCH(cudaGraphInstantiate, (void** executable, void* graph, unsigned long long flags), (executable, graph, flags))
WATCH(cudaStreamCreateWithFlags, (void** stream, unsigned flags), (stream, flags))
}
#endif

}  // namespace assay::testing
