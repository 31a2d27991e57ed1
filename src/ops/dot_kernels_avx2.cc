// Dot products in AVX2 with FMA: sixteen lanes are two registers. dot16_kernels.h says how work is cut.
#include <immintrin.h>

#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

constexpr int kRowTile = 2;
constexpr int kTokenTile = 2;  // eight sums and six operands: sixteen registers hold no more

struct Vec {
  __m256 low, high;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Vec value) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
inline Vec fused(Vec a, Vec b, Vec sum) {
  return {_mm256_fmadd_ps(a.low, b.low, sum.low), _mm256_fmadd_ps(a.high, b.high, sum.high)};
}
inline float fold(Vec value) {
  const __m256 eight = _mm256_add_ps(value.low, value.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// out[r] = fold(sum(r))
template <int R, class Sum>
inline void fold_rows(const Sum& sum, float* out) {
  for (int r = 0; r < R; ++r) out[r] = fold(sum(r));
}

inline Vec row_f32(const std::byte* from) { return load(reinterpret_cast<const float*>(from)); }
inline __m128i half(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec row_bf16(const std::byte* from) { return {widen_bf16(half(from)), widen_bf16(half(from + 16))}; }
inline Vec row_f16(const std::byte* from) { return {_mm256_cvtph_ps(half(from)), _mm256_cvtph_ps(half(from + 16))}; }

// Eight codes, the lowest nibble first.
inline __m256 codes(uint32_t word) {
  const __m256i nibbles =
      _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(word)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 magnitude = _mm256_permutevar8x32_ps(table, nibbles);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(nibbles, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}
inline Vec row_codes(const std::byte* from, float scale) {
  uint32_t words[2];
  __builtin_memcpy(words, from, sizeof(words));
  const __m256 factor = _mm256_set1_ps(scale);
  return {_mm256_mul_ps(codes(words[0]), factor), _mm256_mul_ps(codes(words[1]), factor)};
}

}  // namespace
}  // namespace assay::ops

#include "ops/dot16_kernels.h"

namespace assay::ops {

void dot_avx2(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  dot16(rows, tokens, out, stride);
}

}  // namespace assay::ops
