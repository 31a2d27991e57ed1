// The functions of vector_kernel.h for any instruction set: included by one kernel file each, after a simd_<set>.h of
// backend/cpu, `namespace simd`, the namespace of its Vec, and Doubles, a register of them. Everything is in an
// anonymous namespace, so that each file keeps its own copy. Sixteen elements at a time; a rest is padded with zeros.
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
void divide(const float* x, float divisor, E* y, int64_t count) {
  map(
      count, [=](Vec value) { return simd::div(value, simd::broadcast(divisor)); }, y, x);
}

template <class E>
void rope(const E* x, const float* gain, float scale, const float* cosine, const float* sine, int64_t half, float* y,
          int64_t count) {
  const Vec factor = simd::broadcast(scale);
  map(
      count, [=](Vec value, Vec g) { return simd::mul(value, simd::mul(factor, g)); }, y, x, gain);
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t lanes = half - i < 16 ? half - i : 16;
    const auto read = [&](const float* from) { return lanes < 16 ? get_part(from + i, lanes) : get(from + i); };
    const auto write = [&](float* to, Vec value) { lanes < 16 ? put_part(to + i, value, lanes) : put(to + i, value); };
    const Vec a = read(y), b = read(y + half), cos = read(cosine), sin = read(sine);
    write(y, simd::sub(simd::mul(a, cos), simd::mul(b, sin)));
    write(y + half, simd::add(simd::mul(b, cos), simd::mul(a, sin)));
  }
}

struct SinCos {
  Doubles sine, cosine;
};

// Of 0 <= x < 2^20: x = n pi/2 + r with |r| <= pi/4 (pi/2 in two parts, the first of 33 bits so that its product is
// exact), Taylor polynomials of degree 11 and 10 (remainders 7e-12 and 1.2e-10), and the quadrant n mod 4.
inline SinCos sin_cos(Doubles x) {
  constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer held in the low bits
  using Bits = decltype(x < Doubles{});
  const Doubles shifted = x * 0.63661977236758134 + kRounder;
  const Doubles n = shifted - kRounder;
  const Doubles r = (x - n * 0x1.921fb544p0) - n * 0x1.0b4611a626331p-34;
  const Doubles z = r * r;
  const Doubles sine =
      r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z * (1.0 / 39916800)))));
  const Doubles cosine =
      1.0 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
  const Bits quadrant = reinterpret_cast<Bits>(shifted), odd = -(quadrant & 1);
  const auto choose = [&](Doubles even_one, Doubles odd_one, Bits negative) {
    const Bits value = (reinterpret_cast<Bits>(even_one) & ~odd) | (reinterpret_cast<Bits>(odd_one) & odd);
    return reinterpret_cast<Doubles>(value ^ ((negative & 2) << 62));
  };
  return {choose(sine, cosine, quadrant), choose(cosine, sine, quadrant + 1)};
}

inline void angles(const float* frequency, float position, float* cosine, float* sine, int64_t count) {
  constexpr int64_t kLanes = sizeof(Doubles) / sizeof(double);
  for (int64_t first = 0; first < count; first += kLanes) {
    const int64_t lanes = count - first < kLanes ? count - first : kLanes;
    Doubles angle = {};
    for (int64_t i = 0; i < lanes; ++i) angle[i] = position * frequency[first + i];
    const SinCos both = sin_cos(angle);
    for (int64_t i = 0; i < lanes; ++i) {
      cosine[first + i] = static_cast<float>(both.cosine[i]);
      sine[first + i] = static_cast<float>(both.sine[i]);
    }
  }
}

template <class E>
constexpr VectorFunctions<E> functions() {
  return {sum_of_squares<E>, norm<E>,   silu_norm<E>, sigmoid_norm<E>, convolve<E>,
          scale<E>,          divide<E>, rope<E>,      silu_mul<E>};
}
constexpr VectorKernels kernels() { return {angles, functions<uint16_t>(), functions<float>()}; }

}  // namespace
}  // namespace assay::ops
