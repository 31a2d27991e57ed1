#include "backend/cpu/simd_avx2.h"

namespace {
constexpr int kRowTile = 2;
constexpr int kWideTile = 2;
}  // namespace

#include "ops/attention/attention_kernels.h"

namespace assay::ops {

void attention_block_avx2(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  attention_block(scratch, rows, block);
}

}  // namespace assay::ops
