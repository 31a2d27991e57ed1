#include "backend/cpu/simd_avx2.h"

namespace assay::ops {
namespace {

constexpr int kRowTile = 2;
constexpr int kKeyTile = 2;

// Elements 0-3 and 8-11 of sixteen in one register, 4-7 and 12-15 in the other: two unpackings widen bf16, no shift.
struct Lanes {
  static cpu::Vec load_f32(const float* from) { return {halves(from, from + 8), halves(from + 4, from + 12)}; }
  static cpu::Vec load_bf16(const void* from) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(from)), none = _mm256_setzero_si256();
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(none, bits)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, bits))};
  }
  template <int R, int J>
  static void fold_tile(const cpu::Vec (&sum)[R][J], float* out, int32_t stride) {
    if constexpr (R == 2 && J == 2) {
      const __m128 four = fold(sum[0][0], sum[0][1], sum[1][0], sum[1][1]);
      _mm_storel_pi(reinterpret_cast<__m64*>(out), four);
      _mm_storeh_pi(reinterpret_cast<__m64*>(out + stride), four);
    } else if constexpr (J == 4) {
      for (int r = 0; r < R; ++r) _mm_storeu_ps(out + r * stride, fold(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
    } else {
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < J; ++j) out[r * stride + j] = fold(sum[r][j]);
      }
    }
  }

 private:
  static __m256 halves(const float* low, const float* high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  }
  static __m128 quarter(__m256 value) {
    return _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  }
  static float fold(cpu::Vec value) {
    const __m128 four = _mm_add_ps(quarter(value.low), quarter(value.high));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  // a's four lanes, then b's, after two foldings.
  static __m256 quarters(cpu::Vec a, cpu::Vec b) {
    const auto fold_once = [](__m256 p, __m256 q) {
      return _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
    };
    return _mm256_add_ps(fold_once(a.low, b.low), fold_once(a.high, b.high));
  }
  static __m128 fold(cpu::Vec a, cpu::Vec b, cpu::Vec c, cpu::Vec d) {
    const __m256 ac = quarters(a, c), bd = quarters(b, d);
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE));
    const __m128 ab = _mm256_castps256_ps128(two), cd = _mm256_extractf128_ps(two, 1);
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD));
  }
};

}  // namespace
}  // namespace assay::ops

#include "ops/attention/attention_kernels.h"

namespace assay::ops {

void attention_block_avx2(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  attention_block(scratch, rows, block);
}

}  // namespace assay::ops
