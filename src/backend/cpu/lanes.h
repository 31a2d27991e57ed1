// Four fp32 lanes in one baseline x86-64 register, by the compiler's vector extension: + - * / and comparisons work
// elementwise and round exactly as the scalar operators do.
//
// A sum over lanes here always means: eight lanes (two registers), lane l takes elements l, l + 8, l + 16, ... in
// rising order, then lanes are added as ((0+4)+(2+6)) + ((1+5)+(3+7)). This order does not depend on how loops are
// blocked.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/convert.h"

namespace assay::cpu {

using F4 = float __attribute__((vector_size(16)));
using I4 = int32_t __attribute__((vector_size(16)));
using U4 = uint32_t __attribute__((vector_size(16)));
using U16x8 = uint16_t __attribute__((vector_size(16)));

inline F4 broadcast(float value) { return F4{value, value, value, value}; }

inline F4 load4(const float* data) {
  F4 value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

inline void store4(float* data, F4 value) { std::memcpy(data, &value, sizeof(value)); }

// value > otherwise ? value : otherwise in every lane, so `otherwise` where either is a NaN; smaller likewise. The
// instructions of that very meaning, which gcc 12 makes four of.
inline F4 larger(F4 value, F4 otherwise) {
#if defined(__SSE2__)
  return _mm_max_ps(value, otherwise);
#else
  return value > otherwise ? value : otherwise;
#endif
}
inline F4 smaller(F4 value, F4 otherwise) {
#if defined(__SSE2__)
  return _mm_min_ps(value, otherwise);
#else
  return value < otherwise ? value : otherwise;
#endif
}

// Eight consecutive elements.
struct F8 {
  F4 low, high;
};

inline F8 load8(const float* data) { return {load4(data), load4(data + 4)}; }

inline F8 widen_bf16(U16x8 bits) {
  const U16x8 zero = {};
  return {reinterpret_cast<F4>(__builtin_shufflevector(zero, bits, 0, 8, 1, 9, 2, 10, 3, 11)),
          reinterpret_cast<F4>(__builtin_shufflevector(zero, bits, 4, 12, 5, 13, 6, 14, 7, 15))};
}

inline F8 load8(const Bf16* data) {
  U16x8 bits;
  std::memcpy(&bits, data, sizeof(bits));
  return widen_bf16(bits);
}

inline void store8(float* data, F8 value) {
  store4(data, value.low);
  store4(data + 4, value.high);
}

// What rounding a number to bf16 adds to its bits.
inline U4 bf16_increment(U4 bits) { return (bits >> 16 & 1) + 0x7fff; }

// from_float<Bf16> of every lane, in the upper halves.
inline U4 round_bf16(F4 value) {
  const U4 bits = reinterpret_cast<U4>(value);
  const U4 number = reinterpret_cast<U4>(value == value);  // NOLINT(misc-redundant-expression): zero for a NaN
  return (bits + (bf16_increment(bits) & number)) | (0x400000 & ~number);
}

template <class T>
F4 round_through(F4 value);
template <>
inline F4 round_through<float>(F4 value) {
  return value;
}
template <>
inline F4 round_through<Bf16>(F4 value) {
  return reinterpret_cast<F4>(round_bf16(value) & 0xffff0000u);
}

inline void store8(Bf16* data, F8 value) {
#if defined(__SSE2__)
  // One look for NaNs among eight, and one instruction packs where gcc 12 shuffles six times.
  U4 low = reinterpret_cast<U4>(value.low), high = reinterpret_cast<U4>(value.high);
  low += bf16_increment(low);
  high += bf16_increment(high);
  if (_mm_movemask_ps(_mm_cmpunord_ps(value.low, value.high)) != 0) [[unlikely]] {
    low = round_bf16(value.low);
    high = round_bf16(value.high);
  }
  const auto upper_halves = _mm_packs_epi32(reinterpret_cast<__m128i>(reinterpret_cast<I4>(low) >> 16),
                                            reinterpret_cast<__m128i>(reinterpret_cast<I4>(high) >> 16));
#else
  const auto low = reinterpret_cast<U16x8>(round_bf16(value.low)),
             high = reinterpret_cast<U16x8>(round_bf16(value.high));
  const U16x8 upper_halves = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
  std::memcpy(data, &upper_halves, sizeof(upper_halves));
}

// As load8; elements from `count` on are not read and are `rest`.
template <class T>
F8 load_part(const T* data, int64_t count, T rest = {}) {
  T part[8];
  std::fill_n(part, 8, rest);
  std::copy_n(data, std::min<int64_t>(count, 8), part);
  return load8(part);
}

// out[i] = body(in[i]...) for i < count, body from F4s to an F4. out may be one of in.
template <class Out, class Body, class... In>
void map_lanes(int64_t count, Out* out, const Body& body, const In*... in) {
  const auto map8 = [&](Out* to, auto... values) { store8(to, {body(values.low...), body(values.high...)}); };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) map8(out + i, load8(in + i)...);
  if (i == count) return;
  Out rest[8];
  map8(rest, load_part(in + i, count - i)...);
  std::copy_n(rest, count - i, out + i);
}

inline float add_lanes(F8 lanes) {
  const F4 four = lanes.low + lanes.high;
  return (four[0] + four[2]) + (four[1] + four[3]);
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
