// Kernels that start before the kernel ahead of them in the stream has ended (Start::kOverlap of launch.h): their
// blocks come onto the chip, and their weights into L2, while that kernel finishes.
//
// Such a kernel calls begin_overlapped() first of all, in every thread, on every path: behind it all work enqueued
// before has ended and its writes are seen. Ahead of it a kernel may touch only what no work of the stream writes:
// weights. A block that left without the call would let the kernel end, and the next one start, too early.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay::cuda {

__device__ __forceinline__ void begin_overlapped() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Starts moving bytes to L2; address and size are multiples of 16. One thread calls it.
__device__ __forceinline__ void prefetch_to_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace assay::cuda
