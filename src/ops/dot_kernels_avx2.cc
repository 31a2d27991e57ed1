// Dot products in AVX2 with FMA: sixteen lanes are two registers. dot16_kernels.h says how work is cut.
#include "backend/cpu/simd_avx2.h"
#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

using namespace cpu;

// A row by itself: one stream is what hardware prefetchers follow best, and they stop at every 4 KiB.
constexpr int kRowTile = 1;
inline int64_t prefetch_bytes(int64_t) { return 2048; }

// A panel's tile is eight lanes wide: twelve sums and four weights are all registers; a load for 1.7 multiply-adds. A
// panel of 16 KiB and three tokens of 1 KiB stay in L1.
using Part = __m256;
constexpr int kPartLanes = 8;
constexpr int kPanelRows = 4;
constexpr int kPanelTokens = 3;
inline Part load_part(const float* from) { return _mm256_loadu_ps(from); }
inline void store_part(float* to, Part value) { _mm256_storeu_ps(to, value); }
inline Part fused_part(Part a, Part b, Part sum) { return _mm256_fmadd_ps(a, b, sum); }

// Two blocks of nvfp4 to fp32 by way of bf16: its low and its high byte come out of a table of sixteen each. The two
// 128-bit halves hold the same bytes; one looks up the low nibbles (even k), the other the high ones. So the lanes of
// a block come as DotForm::kF32Quads has them.
struct Codes {
  __m256i bf16[2];  // of a block: k = 0, 2, .. 14 | 1, 3, .. 15
  float scale[2];

  Codes(const std::byte* from, float first_scale, float second_scale) : scale{first_scale, second_scale} {
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256i nibbles =
        _mm256_and_si256(_mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
    const __m256i low_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i low = _mm256_shuffle_epi8(low_table, nibbles), high = _mm256_shuffle_epi8(high_table, nibbles);
    bf16[0] = _mm256_unpacklo_epi8(low, high);
    bf16[1] = _mm256_unpackhi_epi8(low, high);
  }
  Vec block(int index) const {
    const __m256i even = _mm256_slli_epi32(bf16[index], 16);
    const __m256i odd = _mm256_and_si256(bf16[index], _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    const __m256 factor = _mm256_set1_ps(scale[index]);
    return {_mm256_mul_ps(_mm256_castsi256_ps(even), factor), _mm256_mul_ps(_mm256_castsi256_ps(odd), factor)};
  }
  Vec first() const { return block(0); }
  Vec second() const { return block(1); }
};

// Lanes 0 and 2, 1 and 3, then both sums, of four registers' 128-bit halves: [r] of each half is register r's sum.
inline __m128 add_quads(__m128 a, __m128 b, __m128 c, __m128 d) {
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}
inline __m256 add_quads(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const auto pairs = [](__m256 value) { return _mm256_castps_pd(value); };
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(pairs(ab), pairs(cd))),
                       _mm256_castpd_ps(_mm256_unpackhi_pd(pairs(ab), pairs(cd))));
}

template <DotFormat kFormat, int R, class Sum>
inline void fold_sums(const Sum& sum, float* out) {
  static_assert(R <= 4);
  Vec s[4];
  for (int r = 0; r < 4; ++r) s[r] = sum(r < R ? r : 0);
  __m128 folded;
  if constexpr (kFormat == DotFormat::kNvfp4) {
    const __m256 halves = _mm256_add_ps(add_quads(s[0].low, s[1].low, s[2].low, s[3].low),
                                        add_quads(s[0].high, s[1].high, s[2].high, s[3].high));
    folded = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  } else {
    const auto four = [](const Vec& value) {
      const __m256 eight = _mm256_add_ps(value.low, value.high);
      return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    };
    folded = add_quads(four(s[0]), four(s[1]), four(s[2]), four(s[3]));
  }
  if constexpr (R == 4) {
    _mm_storeu_ps(out, folded);
  } else {
    float lanes[4];
    _mm_storeu_ps(lanes, folded);
    for (int r = 0; r < R; ++r) out[r] = lanes[r];
  }
}

}  // namespace
}  // namespace assay::ops

#include "ops/dot16_kernels.h"

namespace assay::ops {

void dot_avx2(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  dot16(rows, tokens, out, stride);
}

void quads_avx2(float* x, int64_t sixteens) {
  for (int64_t i = 0; i < sixteens; ++i, x += 16) {
    __m128 a = _mm_loadu_ps(x), b = _mm_loadu_ps(x + 4), c = _mm_loadu_ps(x + 8), d = _mm_loadu_ps(x + 12);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(x, a);
    _mm_storeu_ps(x + 4, b);
    _mm_storeu_ps(x + 8, c);
    _mm_storeu_ps(x + 12, d);
  }
}

}  // namespace assay::ops
