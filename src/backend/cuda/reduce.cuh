// Sums and maxima over a warp or a block in an order that depends on the thread index alone.
#pragma once

#include <cstdint>

namespace assay::cuda {

constexpr unsigned kFullWarp = 0xFFFFFFFFu;

// The butterfly gives every lane the same bits: addition commutes.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, offset));
  return value;
}

// Over a block of kWarps warps, to all threads. `scratch`: kWarps floats of shared memory, free for reuse after the
// caller's next barrier.
template <int kWarps>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp];
  return sum;
}
template <int kWarps>
__device__ __forceinline__ float block_max(float value, float* scratch) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) largest = fmaxf(largest, scratch[warp]);
  return largest;
}

// ORs `bit` into a sentinel's word when any thread saw something bad.
__device__ __forceinline__ void flag(uint32_t* word, uint32_t bit, bool bad) {
  if (bad && word != nullptr) atomicOr(word, bit);
}

}  // namespace assay::cuda
