#include "backend/cpu/simd_avx512.h"

namespace assay::ops {
namespace {

constexpr int kRowTile = 4;
constexpr int kKeyTile = 4;

struct Lanes {
  static cpu::Vec load_f32(const float* from) { return cpu::load(from); }
  static cpu::Vec load_bf16(const void* from) { return cpu::load_bf16(from); }
  template <int R, int J>
  static void fold_tile(const cpu::Vec (&sum)[R][J], float* out, int32_t stride) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) cpu::fold_rows<J>([&](int j) { return sum[r][j]; }, out + r * stride);
  }
};

}  // namespace
}  // namespace assay::ops

#include "ops/attention/attention_kernels.h"

namespace assay::ops {

void attention_block_avx512(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
  attention_block(scratch, rows, block);
}

}  // namespace assay::ops
