// What CPU rows share about a launch; no arithmetic of any op.
#pragma once

#include <atomic>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

inline int32_t token_total(const TokenCounts& counts) { return counts.live == nullptr ? counts.total : counts.live[1]; }

// ORs `bits` (kNonFinite...) into this layer's word; from any thread.
inline void raise_flags(const Launch& launch, uint32_t bits) {
  if (launch.flags == nullptr || bits == 0) return;
  std::atomic_ref<uint32_t>(launch.flags->words[launch.layer]).fetch_or(bits, std::memory_order_relaxed);
}

}  // namespace assay::ops
