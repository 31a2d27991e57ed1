#include "backend/cpu/simd_avx512.h"

namespace {
constexpr int kRowTile = 4;
constexpr int kWideTile = 4;
}  // namespace

#include "ops/attention/attention_kernels.h"

namespace assay::ops {

void attention_block_avx512(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  attention_block(scratch, rows, block);
}

}  // namespace assay::ops
