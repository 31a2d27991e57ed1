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

template <DotFormat, int R, class Sum>
inline void fold_sums(const Sum& sum, float* out) {
  fold_rows<R>(sum, out);
}

}  // namespace
}  // namespace assay::ops

#include "ops/dot16_kernels.h"

namespace assay::ops {

void dot_avx512(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride) {
  dot16(rows, tokens, out, stride);
}

}  // namespace assay::ops
