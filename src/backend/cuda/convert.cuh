// bf16 and fp32 on the device, as raw bits: 16-byte loads of eight bf16 values and conversions to nearest even.
#pragma once

#include <cstdint>

namespace assay::cuda {

using Bf16Bits = uint16_t;

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ float to_float(Bf16Bits value) { return __uint_as_float(uint32_t{value} << 16); }

__device__ __forceinline__ Bf16Bits to_bf16(float value) {
  Bf16Bits bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ uint32_t to_bf16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ float round_bf16(float value) { return to_float(to_bf16(value)); }

// Eight values from `from`, which need not be aligned when `aligned` is false.
__device__ __forceinline__ uint4 load8(const Bf16Bits* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint4*>(from);
  uint4 out;
  out.x = from[0] | uint32_t{from[1]} << 16;
  out.y = from[2] | uint32_t{from[3]} << 16;
  out.z = from[4] | uint32_t{from[5]} << 16;
  out.w = from[6] | uint32_t{from[7]} << 16;
  return out;
}

// For addresses of which the compiler does not know that they are global memory.
__device__ __forceinline__ uint4 load_global(const void* from) {
  uint4 out;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(from));
  return out;
}

// Bytes read once: past L1.
__device__ __forceinline__ uint4 load_stream(const void* from) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(from));
  return out;
}
__device__ __forceinline__ uint2 load_stream8(const void* from) {
  uint2 out;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "l"(from));
  return out;
}

// exp of a negative number alone: nothing overflows, and small results keep their bits.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

}  // namespace assay::cuda
