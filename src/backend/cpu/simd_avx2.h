// Sixteen fp32 lanes in two AVX2 registers, for kernel files only (`*_kernels_avx2.cc`): the functions of
// simd_avx512.h with the same results, bit for bit. All in an anonymous namespace, as there.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/sigmoid_exp.h"

namespace assay::cpu {
namespace {

struct Vec {
  __m256 low, high;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Vec load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec load_bf16(const void* from) {
  const auto* half = static_cast<const __m128i*>(from);
  return {widen_bf16(_mm_loadu_si128(half)), widen_bf16(_mm_loadu_si128(half + 1))};
}
inline Vec load_f16(const void* from) {
  const auto* half = static_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}
inline void store(float* to, Vec value) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
// Rounded to nearest even; a NaN stays one, quiet.
inline __m256i round_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(void* to, Vec value) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(value.low), round_bf16(value.high));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xD8));
}
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Vec fused(Vec a, Vec b, Vec sum) {
  return {_mm256_fmadd_ps(a.low, b.low, sum.low), _mm256_fmadd_ps(a.high, b.high, sum.high)};
}
// b where either is NaN.
inline Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline float largest(Vec value) {
  const __m256 eight = _mm256_max_ps(value.low, value.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Lanes folded by halves: lane[l] += lane[l + 8], then 4, 2, 1.
inline float fold(Vec value) {
  const __m256 eight = _mm256_add_ps(value.low, value.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// out[r] = fold(sum(r)) for r < R.
template <int R, class Sum>
inline void fold_rows(const Sum& sum, float* out) {
  for (int r = 0; r < R; ++r) out[r] = fold(sum(r));
}

inline __m256 exponential(__m256 x) {
  const auto constant = [](float value) { return _mm256_set1_ps(value); };
  const auto step = [](__m256 p, __m256 r, float next) {
    return _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(next));
  };
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i limited = _mm256_min_epi32(magnitude, _mm256_set1_epi32(0x42d20000));
  const __m256i clamped = _mm256_blendv_epi8(limited, magnitude, nan);
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  x = _mm256_castsi256_ps(_mm256_or_si256(sign, clamped));
  const __m256 rounder = constant(12582912.0f);
  const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, constant(1.44269504088896341f)), rounder);
  const __m256 n = _mm256_sub_ps(shifted, rounder);
  const __m256 r = _mm256_sub_ps(_mm256_sub_ps(x, _mm256_mul_ps(n, constant(0.693359375f))),
                                 _mm256_mul_ps(n, constant(-2.12194440e-4f)));
  __m256 p = constant(1.0f / 5040.0f);
  p = step(p, r, 1.0f / 720.0f);
  p = step(p, r, 1.0f / 120.0f);
  p = step(p, r, 1.0f / 24.0f);
  p = step(p, r, 1.0f / 6.0f);
  p = step(p, r, 0.5f);
  p = _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(p, r), r), r), constant(1.0f));
  const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(rounder));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

// exp.h's fast_exp, operation by operation.
inline Vec exponential(Vec x) { return {exponential(x.low), exponential(x.high)}; }

inline __m256 sigmoid_exp(__m256 x) {
  const __m256 least = _mm256_set1_ps(kSigmoidLeast), most = _mm256_set1_ps(kSigmoidMost);
  return sigmoid_exp_within(_mm256_max_ps(least, _mm256_min_ps(most, x)));
}
inline Vec sigmoid_exp(Vec x) { return {sigmoid_exp(x.low), sigmoid_exp(x.high)}; }

}  // namespace
}  // namespace assay::cpu
