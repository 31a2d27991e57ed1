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
inline Part broadcast_part(const float* from) { return _mm256_broadcast_ss(from); }

// Of tokens: twelve sums, a load for 1.5 multiply-adds.
constexpr int64_t kTokenRowUnit = 2;
constexpr int64_t kTokenRows = 3 * kTokenRowUnit;
using Words = __m256i;
inline Words load_words(const std::byte* const* x, int64_t at) {
  const auto row = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[r] + at)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(4), 1);
}
inline void transpose_words(const Words (&in)[4], Words (&out)[4]) {
  const Words even_low = _mm256_unpacklo_epi32(in[0], in[2]), even_high = _mm256_unpackhi_epi32(in[0], in[2]);
  const Words odd_low = _mm256_unpacklo_epi32(in[1], in[3]), odd_high = _mm256_unpackhi_epi32(in[1], in[3]);
  out[0] = _mm256_unpacklo_epi32(even_low, odd_low);
  out[1] = _mm256_unpackhi_epi32(even_low, odd_low);
  out[2] = _mm256_unpacklo_epi32(even_high, odd_high);
  out[3] = _mm256_unpackhi_epi32(even_high, odd_high);
}
inline Part low_halves(Words words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
inline Part high_halves(Words words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Two blocks of nvfp4 to fp32 by way of bf16: its low and its high byte come out of a table of sixteen each.
struct Codes {
  __m128i nibbles[2];
  float scale[2];

  Codes(const std::byte* from, float first_scale, float second_scale) : scale{first_scale, second_scale} {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    nibbles[0] = _mm_unpacklo_epi8(low, high);
    nibbles[1] = _mm_unpackhi_epi8(low, high);
  }
  Vec block(int index) const {
    const __m128i low_table = _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
    const __m128i high_table =
        _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64);
    const __m128i low = _mm_shuffle_epi8(low_table, nibbles[index]);
    const __m128i high = _mm_shuffle_epi8(high_table, nibbles[index]);
    return mul({widen_bf16(_mm_unpacklo_epi8(low, high)), widen_bf16(_mm_unpackhi_epi8(low, high))},
               broadcast(scale[index]));
  }
  Vec first() const { return block(0); }
  Vec second() const { return block(1); }
};

// Lanes 0 and 2, 1 and 3, then both sums, of four registers: [r] is register r's sum.
inline __m128 add_quads(__m128 a, __m128 b, __m128 c, __m128 d) {
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

template <int R, class Sum>
inline void fold_sums(const Sum& sum, float* out) {
  static_assert(R <= 4);
  const auto four = [&](int r) {
    const Vec value = sum(r < R ? r : 0);
    const __m256 eight = _mm256_add_ps(value.low, value.high);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  };
  const __m128 folded = add_quads(four(0), four(1), four(2), four(3));
  if constexpr (R == 4) {
    _mm_storeu_ps(out, folded);
  } else {
    float lanes[4];
    _mm_storeu_ps(lanes, folded);
    for (int r = 0; r < R; ++r) out[r] = lanes[r];
  }
}

struct Fixed {
  static constexpr int kBlocks = 8;
  static constexpr int kRows = 1;
  using Bytes = __m256i;
  using Floats = __m256;

  static void deinterleave(const std::byte* codes, Bytes& even, Bytes& odd) {
    const auto* words = reinterpret_cast<const float*>(codes);
    const __m256 first = _mm256_loadu_ps(words), second = _mm256_loadu_ps(words + 8);
    even = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88));
    odd = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xdd));
  }
  static Bytes low_weights(Bytes codes) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  }
  static Bytes high_weights(Bytes codes) { return low_weights(_mm256_srli_epi16(codes, 4)); }
  // In place, the bits of a code are those of fp16 times 2^-8.
  static Floats scales(const std::byte* codes) {
    const __m128i order = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    return _mm256_cvtph_ps(_mm_srli_epi16(_mm_shuffle_epi8(bytes, order), 1));
  }
  static Bytes load_bytes(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static Bytes add_products(Bytes sums, Bytes weights, Bytes x) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, x));
  }
  template <int kByte>
  static Bytes lane_sums(Bytes sums) {
    const Bytes lanes = _mm256_madd_epi16(sums, _mm256_set1_epi16(kByte == 0 ? 1 : 256));
    return kByte == 2 ? _mm256_slli_epi32(lanes, 8) : lanes;
  }
  static Bytes add(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
  static Floats to_floats(Bytes ints) { return _mm256_cvtepi32_ps(ints); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  // A lane's number is block lane_block(lane), so lanes are folded by 8, then by 2 of every 4, by 4, by 1.
  template <class Sum>
  static void fold_four(const Sum& sum, float* out) {
    const auto eight = [&](int r) { return _mm256_castps_pd(_mm256_add_ps(sum(r, 0), sum(r, 1))); };
    const auto fold_two = [](__m256d a, __m256d b) {
      const __m256 four =
          _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
      return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
    };
    const __m128 ab = fold_two(eight(0), eight(1)), cd = fold_two(eight(2), eight(3));
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
  }
};

}  // namespace
}  // namespace assay::ops

#include "ops/bf16_kernels.h"
#include "ops/dot16_kernels.h"
#include "ops/fixed_kernels.h"
#include "ops/lane_kernels.h"
#include "ops/token_kernels.h"

namespace assay::ops {

constexpr int64_t kFewTokens = 7;  // for which bf16 weights are not worth their decoding

void dot_avx2(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  switch (tokens.form) {
    case DotForm::kFixed:
      return fixed_dot(rows, tokens, out, stride);
    case DotForm::kBf16:
      return rows.format == DotFormat::kBf16 && tokens.count < kFewTokens ? bf16_dot(rows, tokens, out, stride)
                                                                          : tokens_dot(rows, tokens, out, stride);
    case DotForm::kLanes:
      return lanes_dot(rows, tokens, out, stride);
    default:
      return dot16(rows, tokens, out, stride);
  }
}

void fixed_avx2(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride) { fix(x, k, out, block_stride); }

}  // namespace assay::ops
