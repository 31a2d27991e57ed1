// The functions of vector_kernel.h for any instruction set: included by one kernel file each, after a simd_<set>.h of
// backend/cpu and `namespace simd`, the namespace of its Vec. Everything is in an anonymous namespace, so that each
// file keeps its own copy. Sixteen elements at a time; a rest is padded with zeros.
#pragma once

#include "ops/vector_kernel.h"

namespace assay::ops {
namespace {

using simd::Vec;

inline Vec get(const float* from) { return simd::load(from); }
inline Vec get(const uint16_t* from) { return simd::load_bf16(from); }
inline void put(float* to, Vec value) { simd::store(to, value); }
inline void put(uint16_t* to, Vec value) { simd::store_bf16(to, value); }

// The first count < 16 elements, then zeros.
template <class E>
inline Vec get_part(const E* from, int64_t count) {
  E part[16] = {};
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  return get(part);
}
template <class E>
inline void put_part(E* to, Vec value, int64_t count) {
  E part[16];
  put(part, value);
  for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}

// out[i] = body(in[i]...)
template <class Body, class Out, class... In>
inline void map(int64_t count, const Body& body, Out* out, const In*... in) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) put(out + i, body(get(in + i)...));
  if (i < count) put_part(out + i, body(get_part(in + i, count - i)...), count - i);
}

// out[i] = body(exp(-x[i]), x[i], in[i]...). A loop over nothing but exponentials has more of their chains in flight.
template <class Body, class Out, class X, class... In>
inline void map_with_exp(int64_t count, const Body& body, Out* out, const X* x, const In*... in) {
  constexpr int64_t kBlock = 64;
  float exponential[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = count - first < kBlock ? count - first : kBlock;
    map(
        block, [](Vec value) { return simd::sigmoid_exp(value); }, exponential, x + first);
    map(block, body, out + first, exponential, x + first, in + first...);
  }
}

// numerator * sigmoid(x), of exp(-x).
inline Vec sigmoid_of(Vec exponential, Vec numerator) {
  return simd::div(numerator, simd::add(simd::broadcast(1.0f), exponential));
}

template <class E>
float sum_of_squares(const E* x, int64_t count) {
  Vec sum = simd::zero();
  const auto add = [&](Vec value) { sum = simd::add(sum, simd::mul(value, value)); };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) add(get(x + i));
  if (i < count) add(get_part(x + i, count - i));
  return simd::fold(sum);
}

template <class E>
void norm(const E* x, const float* weight, float scale, E* y, int64_t count) {
  const Vec factor = simd::broadcast(scale);
  map(
      count, [=](Vec value, Vec w) { return simd::mul(simd::mul(value, factor), w); }, y, x, weight);
}

template <class E>
void silu_norm(const E* x, const float* weight, float scale, const E* z, E* y, int64_t count) {
  const Vec factor = simd::broadcast(scale);
  const auto gated = [=](Vec exponential, Vec gate, Vec value, Vec w) {
    return simd::mul(simd::mul(simd::mul(value, factor), w), sigmoid_of(exponential, gate));
  };
  map_with_exp(count, gated, y, z, x, weight);
}

template <class E>
void sigmoid_norm(const E* x, const float* weight, float scale, const E* z, E* y, int64_t count) {
  const Vec factor = simd::broadcast(scale);
  const auto gated = [=](Vec exponential, Vec, Vec value, Vec w) {
    return simd::mul(simd::mul(simd::mul(value, factor), w), sigmoid_of(exponential, simd::broadcast(1.0f)));
  };
  map_with_exp(count, gated, y, z, x, weight);
}

template <class E>
void silu_mul(const E* gate, const E* up, E* y, int64_t count) {
  const auto multiply = [](Vec exponential, Vec g, Vec u) { return simd::mul(sigmoid_of(exponential, g), u); };
  map_with_exp(count, multiply, y, gate, up);
}

// Sixteen channels, or the first count of them.
template <class E>
inline Vec convolved(const E* const* inputs, int32_t width, const float* taps, int64_t tap_stride, int64_t i,
                     int64_t count) {
  Vec sum = simd::zero();
  for (int32_t j = 0; j < width; ++j, taps += tap_stride) {
    const Vec tap = count < 16 ? get_part(taps + i, count) : get(taps + i);
    const Vec input = count < 16 ? get_part(inputs[j] + i, count) : get(inputs[j] + i);
    sum = simd::add(sum, simd::mul(tap, input));
  }
  return sum;
}

template <class E>
void convolve(const E* const* inputs, int32_t width, const float* taps, int64_t tap_stride, E* y, int64_t count) {
  constexpr int64_t kBlock = 64;
  float sums[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = count - first < kBlock ? count - first : kBlock;
    for (int64_t i = 0; i < block; i += 16) {
      simd::store(sums + i, convolved(inputs, width, taps, tap_stride, first + i, block - i));
    }
    map_with_exp(
        block, [](Vec exponential, Vec sum) { return sigmoid_of(exponential, sum); }, y + first, sums);
  }
}

template <class E>
void scale(const E* x, float factor, float* y, int64_t count) {
  map(
      count, [=](Vec value) { return simd::mul(value, simd::broadcast(factor)); }, y, x);
}

template <class E>
constexpr VectorFunctions<E> functions() {
  return {sum_of_squares<E>, norm<E>, silu_norm<E>, sigmoid_norm<E>, convolve<E>, scale<E>, silu_mul<E>};
}
constexpr VectorKernels kernels() { return {functions<uint16_t>(), functions<float>()}; }

}  // namespace
}  // namespace assay::ops
