// The loops of limits_kernel.h in AVX-512.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/wide_loops.h"

namespace assay::cpu {

double multiply_add_avx512(int64_t rounds) { return multiply_add<12>(rounds); }

uint64_t read_avx512(const std::byte* data, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t at = 0; at + 256 <= bytes; at += 256) {
    for (int i = 0; i < 4; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + 64 * i));
  }
  return static_cast<uint64_t>(
      _mm512_reduce_or_epi64(_mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]))));
}

}  // namespace assay::cpu
