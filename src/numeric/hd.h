// ASSAY_HD marks a function that also runs on the device, when nvcc compiles it; and the two bit tools all codecs use.
//
// Codecs of this folder are constexpr, hold no state and use only integer arithmetic, comparisons and exact float
// operations, so host, device and compile time give the same bits.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ASSAY_HD __host__ __device__
#else
#define ASSAY_HD
#endif

namespace assay::numeric {

// The builtin behind std::bit_cast: unlike the std function it needs no device overload.
ASSAY_HD constexpr uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
ASSAY_HD constexpr float float_from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kFloatMagnitudeMask = 0x7FFFFFFF;
inline constexpr uint32_t kFloatInfinityBits = 0x7F800000;

// value / 2^shift to the nearest integer, ties to even; 1 <= shift <= 25. The sum must not pass 2^32.
ASSAY_HD constexpr uint32_t shift_right_nearest_even(uint32_t value, int shift) {
  return (value + ((1u << (shift - 1)) - 1) + ((value >> shift) & 1u)) >> shift;
}

}  // namespace assay::numeric
