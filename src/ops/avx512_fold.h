// Folding sums of sixteen lanes by halves (dot_order.h) in AVX-512. For kernel files only: all in an anonymous
// namespace, so that each keeps its own copy.
#pragma once

#include <immintrin.h>

namespace assay::ops {
namespace {

inline float fold(__m512 value) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Four at once: each step adds the halves of two sums into one register.
inline __m128 fold(__m512 a, __m512 b, __m512 c, __m512 d) {
  const auto halves = [](__m512 p, __m512 q) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xEE));
  };
  const __m512 ab = halves(a, b), cd = halves(c, d);  // eight lanes each of a and b
  // Quarters [a b c d], four lanes each.
  const __m512 quarters = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const __m512 two = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0x4E));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
  return _mm512_castps512_ps128(
      _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), one));
}

// out[r] = fold(sum(r))
template <int R, class Sum>
inline void fold_rows(const Sum& sum, float* out) {
  if constexpr (R == 4) {
    _mm_storeu_ps(out, fold(sum(0), sum(1), sum(2), sum(3)));
  } else {
    for (int r = 0; r < R; ++r) out[r] = fold(sum(r));
  }
}

}  // namespace
}  // namespace assay::ops
