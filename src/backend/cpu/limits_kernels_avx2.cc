// The loops of limits_kernel.h in AVX2.
#include "backend/cpu/simd_avx2.h"

#include "backend/cpu/wide_loops.h"

namespace assay::cpu {

double multiply_add_avx2(int64_t rounds) { return multiply_add<6>(rounds); }

uint64_t read_avx2(const std::byte* data, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t at = 0; at + 128 <= bytes; at += 128) {
    for (int i = 0; i < 4; ++i) {
      sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at) + i));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 3));
}

}  // namespace assay::cpu
