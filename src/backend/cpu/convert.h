// Element conversion of the fast CPU rows, written so that the compiler vectorises it. Reference rows do not use it.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/dtype.h"

namespace assay::cpu {

// A bf16 element in memory.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

// Round to nearest even; a NaN stays a (quiet) NaN.
template <>
inline Bf16 from_float<Bf16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return Bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

template <class T>
float round_through(float value) {
  return to_float(from_float<T>(value));
}

// Calls body.template operator()<T>() with the element type of an activation dtype.
template <class Body>
decltype(auto) with_activation(DType dtype, Body&& body) {
  CHECK(dtype == DType::kBf16 || dtype == DType::kF32, "activation dtype {}", dtype_name(dtype));
  return dtype == DType::kBf16 ? body.template operator()<Bf16>() : body.template operator()<float>();
}

}  // namespace assay::cpu
