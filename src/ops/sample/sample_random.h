// The random numbers of sampling: counter based, so that a draw depends on (seed, counter) and nothing else.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with
// the seed as key and the counter in the two low words. Checked against the paper's published answers in
// sample_test.cc.
#pragma once

#include <cstdint>

#include "numeric/hd.h"

namespace assay::ops {

struct PhiloxBlock {
  uint32_t words[4];
};

ASSAY_HD constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key_low, uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * counter.words[0];
    const uint64_t second = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {{static_cast<uint32_t>(second >> 32) ^ counter.words[1] ^ key_low, static_cast<uint32_t>(second),
                static_cast<uint32_t>(first >> 32) ^ counter.words[3] ^ key_high, static_cast<uint32_t>(first)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1), a multiple of 2^-53.
ASSAY_HD constexpr double sample_uniform(uint64_t seed, uint64_t counter) {
  const PhiloxBlock block = philox4x32({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}},
                                       static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{block.words[0]} << 32) | block.words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace assay::ops
