// Dot products in AVX2 with FMA: sixteen lanes are two registers. dot16_kernels.h says how work is cut.
#include "backend/cpu/simd_avx2.h"
#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

using namespace cpu;

constexpr int kRowTile = 2;
constexpr int kTokenTile = 2;  // eight sums and six operands: sixteen registers hold no more

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
