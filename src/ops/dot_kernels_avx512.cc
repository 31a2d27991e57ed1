// Dot products in AVX-512 fp32: sixteen lanes are one register. dot16_kernels.h says how work is cut.
#include "backend/cpu/simd_avx512.h"
#include "ops/dot_kernel.h"

namespace assay::ops {
namespace {

using namespace cpu;

constexpr int kRowTile = 4;
inline int64_t prefetch_bytes(int64_t tile_bytes) { return tile_bytes; }

using Part = Vec;
constexpr int kPartLanes = 16;
constexpr int kPanelRows = 4;
constexpr int kPanelTokens = 4;
inline Part load_part(const float* from) { return load(from); }
inline void store_part(float* to, Part value) { store(to, value); }
inline Part fused_part(Part a, Part b, Part sum) { return fused(a, b, sum); }
inline Part broadcast_part(const float* from) { return _mm512_set1_ps(*from); }

// Of tokens: 24 sums, a load for 1.7 multiply-adds.
constexpr int64_t kTokenRowUnit = 4;
constexpr int64_t kTokenRows = 3 * kTokenRowUnit;
using Words = __m512i;
inline Words load_words(const std::byte* const* x, int64_t at) {
  const auto row = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[r] + at)); };
  const Words two = _mm512_inserti32x4(_mm512_castsi128_si512(row(0)), row(4), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, row(8), 2), row(12), 3);
}
inline void transpose_words(const Words (&in)[4], Words (&out)[4]) {
  const Words even_low = _mm512_unpacklo_epi32(in[0], in[2]), even_high = _mm512_unpackhi_epi32(in[0], in[2]);
  const Words odd_low = _mm512_unpacklo_epi32(in[1], in[3]), odd_high = _mm512_unpackhi_epi32(in[1], in[3]);
  out[0] = _mm512_unpacklo_epi32(even_low, odd_low);
  out[1] = _mm512_unpackhi_epi32(even_low, odd_low);
  out[2] = _mm512_unpacklo_epi32(even_high, odd_high);
  out[3] = _mm512_unpackhi_epi32(even_high, odd_high);
}
inline Part low_halves(Words words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
inline Part high_halves(Words words) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// vpmultishiftqb brings nibble j of the eight bytes to lane j, with other bits above it; vpermps looks at four bits
// only.
inline Vec row_codes(long long word, float scale) {
  const __m512i shifts =
      _mm512_setr_epi64(0x0000000400000000, 0x0000000c00000008, 0x0000001400000010, 0x0000001c00000018,
                        0x0000002400000020, 0x0000002c00000028, 0x0000003400000030, 0x0000003c00000038);
  const __m512i nibbles = _mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(word));
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  return _mm512_mul_ps(_mm512_permutexvar_ps(nibbles, table), _mm512_set1_ps(scale));
}

struct Codes {
  long long word[2];
  float scale[2];

  Codes(const std::byte* from, float first_scale, float second_scale) : scale{first_scale, second_scale} {
    __builtin_memcpy(word, from, sizeof(word));
  }
  Vec first() const { return row_codes(word[0], scale[0]); }
  Vec second() const { return row_codes(word[1], scale[1]); }
};

template <int R, class Sum>
inline void fold_sums(const Sum& sum, float* out) {
  fold_rows<R>(sum, out);
}

struct Fixed {
  static constexpr int kBlocks = 16;
  static constexpr int kRows = 2;
  using Bytes = __m512i;
  using Floats = __m512;

  static void deinterleave(const std::byte* codes, Bytes& even, Bytes& odd) {
    const __m512 first = _mm512_loadu_ps(codes), second = _mm512_loadu_ps(codes + 64);
    even = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
    odd = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xdd));
  }
  // vpermb looks at six bits, of which the table leaves two out: what lies above a nibble does not matter.
  static Bytes low_weights(Bytes codes) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_permutexvar_epi8(codes, _mm512_broadcast_i32x4(table));
  }
  static Bytes high_weights(Bytes codes) { return low_weights(_mm512_srli_epi16(codes, 4)); }
  // In place, the bits of a code are those of fp16 times 2^-8.
  static Floats scales(const std::byte* codes) {
    const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), order);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
  }
  static Bytes load_bytes(const std::byte* from) { return _mm512_loadu_si512(from); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static Bytes add_products(Bytes sums, Bytes weights, Bytes x) { return _mm512_dpbusd_epi32(sums, weights, x); }
  template <int kByte>
  static Bytes lane_sums(Bytes sums) {
    return kByte == 0 ? sums : _mm512_slli_epi32(sums, 8 * kByte);
  }
  static Bytes add(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
  static Floats to_floats(Bytes ints) { return _mm512_cvtepi32_ps(ints); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  template <class Sum>
  static void fold_four(const Sum& sum, float* out) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    cpu::fold_rows<4>([&](int r) { return _mm512_permutexvar_ps(lanes, sum(r, 0)); }, out);
  }
};

}  // namespace
}  // namespace assay::ops

#include "ops/dot16_kernels.h"
#include "ops/fixed_kernels.h"
#include "ops/token_kernels.h"

namespace assay::ops {

void dot_avx512(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  switch (tokens.form) {
    case DotForm::kFixed:
      return fixed_dot(rows, tokens, out, stride);
    case DotForm::kBf16:
      return tokens_dot(rows, tokens, out, stride);
    default:
      return dot16(rows, tokens, out, stride);
  }
}

void fixed_avx512(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride) { fix(x, k, out, block_stride); }

}  // namespace assay::ops
