// The loop of vdpbf16ps.
#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/wide_loops.h"

namespace assay::cpu {

double dot_pairs_avx512_bf16(int64_t rounds) {
  constexpr int kChains = 12;
  Vec sum[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sum[c] = broadcast(static_cast<float>(c));  // else they are one chain
  const __m512bh ones = _mm512_cvtne2ps_pbh(broadcast(1.0f), broadcast(1.0f));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (Vec& chain : sum) chain = _mm512_dpbf16_ps(chain, ones, ones);
  }
#pragma GCC unroll 16
  for (Vec& chain : sum) use(chain);
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

}  // namespace assay::cpu
