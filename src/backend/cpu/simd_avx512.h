// Sixteen fp32 lanes in AVX-512, for kernel files only (`*_kernels_avx512*.cc`). simd_avx2.h has the same functions
// with the same results, bit for bit. All in an anonymous namespace, so that each kernel file keeps its own copy and no
// other file can be linked to one.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/sigmoid_exp.h"

namespace assay::cpu {
namespace {

using Vec = __m512;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec load(const float* from) { return _mm512_loadu_ps(from); }
inline Vec load_bf16(const void* from) {
  const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec load_f16(const void* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }
inline void store(float* to, Vec value) { _mm512_storeu_ps(to, value); }
// Rounded to nearest even; a NaN stays one, quiet.
inline void store_bf16(void* to, Vec value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fused(Vec a, Vec b, Vec sum) { return _mm512_fmadd_ps(a, b, sum); }
// b where either is NaN.
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline float largest(Vec value) { return _mm512_reduce_max_ps(value); }

// Lanes folded by halves: lane[l] += lane[l + 8], then 4, 2, 1.
inline float fold(Vec value) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Four at once: each step adds the halves of two sums into one register.
inline __m128 fold(Vec a, Vec b, Vec c, Vec d) {
  const auto halves = [](Vec p, Vec q) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xEE));
  };
  const Vec ab = halves(a, b), cd = halves(c, d);  // eight lanes of each
  const Vec quarters = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const Vec two = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0x4E));
  const Vec one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
  return _mm512_castps512_ps128(
      _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), one));
}

// out[r] = fold(sum(r)) for r < R.
template <int R, class Sum>
inline void fold_rows(const Sum& sum, float* out) {
  if constexpr (R == 4) {
    _mm_storeu_ps(out, fold(sum(0), sum(1), sum(2), sum(3)));
  } else {
    for (int r = 0; r < R; ++r) out[r] = fold(sum(r));
  }
}

// exp.h's fast_exp, operation by operation.
inline Vec exponential(Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 number = _mm512_cmple_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i clamped = _mm512_mask_min_epi32(magnitude, number, magnitude, _mm512_set1_epi32(0x42d20000));
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  x = _mm512_castsi512_ps(_mm512_or_si512(sign, clamped));
  const Vec rounder = broadcast(12582912.0f);
  const Vec shifted = add(mul(x, broadcast(1.44269504088896341f)), rounder);
  const Vec n = sub(shifted, rounder);
  const Vec r = sub(sub(x, mul(n, broadcast(0.693359375f))), mul(n, broadcast(-2.12194440e-4f)));
  Vec p = broadcast(1.0f / 5040.0f);
  p = add(mul(p, r), broadcast(1.0f / 720.0f));
  p = add(mul(p, r), broadcast(1.0f / 120.0f));
  p = add(mul(p, r), broadcast(1.0f / 24.0f));
  p = add(mul(p, r), broadcast(1.0f / 6.0f));
  p = add(mul(p, r), broadcast(0.5f));
  p = add(add(mul(mul(p, r), r), r), broadcast(1.0f));
  const __m512i exponent = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(rounder));
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i second = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(exponent, half), bias), 23);
  return mul(mul(p, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
}

inline Vec sigmoid_exp(Vec x) {
  const Vec least = broadcast(kSigmoidLeast), most = broadcast(kSigmoidMost);
  return sigmoid_exp_within(_mm512_max_ps(least, _mm512_min_ps(most, x)));
}

}  // namespace
}  // namespace assay::cpu
