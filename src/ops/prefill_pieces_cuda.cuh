// The prefill tokens of a step cut at absolute multiples of a length: the pieces that blocks of prefill kernels work
// on.
#pragma once

#include <algorithm>

#include "backend/cuda/launch.h"
#include "ops/batch.h"

namespace assay::ops {

struct PrefillPiece {
  int sequence = 0;
  int first = 0;  // token of the step
  int count = 0;  // 1 .. length tokens; 0: there is no such piece
};

// Piece `index` of the step's prefill sequences, in their order. All lanes of a warp call it with the same index and
// get the same answer.
__device__ inline PrefillPiece find_prefill_piece(const BatchView& batch, int length, int index) {
  const TokenCounts& tokens = batch.tokens;
  const int decode = tokens.live == nullptr ? tokens.decode : tokens.live[0];
  const int total = tokens.live == nullptr ? tokens.total : tokens.live[1];
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < batch.sequences; base += 32) {
    const int sequence = base + lane;
    int first = 0, end = 0, position = 0, pieces = 0;
    if (sequence < batch.sequences) {
      first = batch.query_start[sequence];
      end = min(batch.query_start[sequence + 1], total);
      if (first >= decode && first < end) {
        position = batch.positions[first];
        pieces = (position + end - first - 1) / length - position / length + 1;
      }
    }
    int before = pieces;  // of this lane's sequence and those ahead of it
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, before, distance);
      before += lane >= distance ? other : 0;
    }
    const unsigned reached = __ballot_sync(0xFFFFFFFFu, index < before);
    if (reached != 0) {
      const int owner = __ffs(static_cast<int>(reached)) - 1;
      const int own = index - __shfl_sync(0xFFFFFFFFu, before - pieces, owner);
      first = __shfl_sync(0xFFFFFFFFu, first, owner);
      end = __shfl_sync(0xFFFFFFFFu, end, owner);
      position = __shfl_sync(0xFFFFFFFFu, position, owner);
      const int begin = max(position, (position / length + own) * length);
      const int stop = min(position + end - first, (position / length + own + 1) * length);
      return {base + owner, first + begin - position, stop - begin};
    }
    index -= __shfl_sync(0xFFFFFFFFu, before, 31);
  }
  return {};
}

// Blocks for the pieces of a step: enough for one long sequence; more and shorter ones are taken in turns.
inline unsigned prefill_blocks(const TokenCounts& tokens, int length) {
  const int prefill = tokens.live == nullptr ? tokens.total - tokens.decode : tokens.total;
  return cuda::blocks_for(prefill, length) + 1;
}

}  // namespace assay::ops
