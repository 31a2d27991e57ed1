// Sixteen fp32 lanes in four baseline registers: the functions of simd_avx2.h and simd_avx512.h that need no fused
// multiplication, with the same results, bit for bit. In a namespace of its own beside lanes.h's of four lanes.
#pragma once

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"

namespace assay::cpu::portable {
namespace {

struct Vec {
  F8 low, high;
};

template <class Function>
inline Vec each(const Function& of, Vec a) {
  return {{of(a.low.low), of(a.low.high)}, {of(a.high.low), of(a.high.high)}};
}
template <class Function>
inline Vec each(const Function& of, Vec a, Vec b) {
  return {{of(a.low.low, b.low.low), of(a.low.high, b.low.high)},
          {of(a.high.low, b.high.low), of(a.high.high, b.high.high)}};
}

inline Vec broadcast(float value) {
  const F4 four = cpu::broadcast(value);
  return {{four, four}, {four, four}};
}
inline Vec zero() { return broadcast(0.0f); }
inline Vec load(const float* from) { return {load8(from), load8(from + 8)}; }
inline Vec load_bf16(const void* from) {
  const auto* data = static_cast<const Bf16*>(from);
  return {load8(data), load8(data + 8)};
}
inline void store(float* to, Vec value) {
  store8(to, value.low);
  store8(to + 8, value.high);
}
inline void store_bf16(void* to, Vec value) {
  auto* data = static_cast<Bf16*>(to);
  store8(data, value.low);
  store8(data + 8, value.high);
}
inline Vec add(Vec a, Vec b) {
  return each([](F4 p, F4 q) { return p + q; }, a, b);
}
inline Vec sub(Vec a, Vec b) {
  return each([](F4 p, F4 q) { return p - q; }, a, b);
}
inline Vec mul(Vec a, Vec b) {
  return each([](F4 p, F4 q) { return p * q; }, a, b);
}
inline Vec div(Vec a, Vec b) {
  return each([](F4 p, F4 q) { return p / q; }, a, b);
}
inline Vec sigmoid_exp(Vec x) {
  return each([](F4 p) { return cpu::sigmoid_exp(p); }, x);
}
inline float fold(Vec value) { return add_lanes({value.low.low + value.high.low, value.low.high + value.high.high}); }

}  // namespace
}  // namespace assay::cpu::portable
