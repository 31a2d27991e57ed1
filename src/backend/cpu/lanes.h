// Four fp32 lanes in one baseline x86-64 register, by the compiler's vector extension: + - * / and comparisons work
// elementwise and round exactly as the scalar operators do.
//
// A sum over lanes here always means: eight lanes (two registers), lane l takes elements l, l + 8, l + 16, ... in
// rising order, then lanes are added as ((0+4)+(2+6)) + ((1+5)+(3+7)). This order does not depend on how loops are
// blocked.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/convert.h"

namespace assay::cpu {

using F4 = float __attribute__((vector_size(16)));

inline F4 broadcast(float value) { return F4{value, value, value, value}; }

inline F4 load4(const float* data) {
  F4 value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

inline void store4(float* data, F4 value) { std::memcpy(data, &value, sizeof(value)); }

// Elements 0..3 to `low`, 4..7 to `high`.
inline void load8(const float* data, F4& low, F4& high) {
  low = load4(data);
  high = load4(data + 4);
}

inline void load8(const Bf16* data, F4& low, F4& high) {
  using U16x8 = uint16_t __attribute__((vector_size(16)));
  U16x8 bits;
  std::memcpy(&bits, data, sizeof(bits));
  const U16x8 zero = {};
  low = reinterpret_cast<F4>(__builtin_shufflevector(zero, bits, 0, 8, 1, 9, 2, 10, 3, 11));
  high = reinterpret_cast<F4>(__builtin_shufflevector(zero, bits, 4, 12, 5, 13, 6, 14, 7, 15));
}

inline float add_lanes(F4 low, F4 high) {
  const F4 four = low + high;
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Sum of squares of `count` values in the order above; the last count % 8 elements join lanes 0, 1, ...
inline float sum_of_squares(const float* data, int64_t count) {
  F4 low = {}, high = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    F4 a, b;
    load8(data + i, a, b);
    low += a * a;
    high += b * b;
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const float square = data[i] * data[i];
    if (lane < 4) {
      low[lane] += square;
    } else {
      high[lane - 4] += square;
    }
  }
  return add_lanes(low, high);
}

// Whether any of `count` values is a NaN or an infinity.
template <class T>
bool any_non_finite(const T* data, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(to_float(data[i]));
    found |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return found != 0;
}

}  // namespace assay::cpu
