// mma.sync m16n8k16, bf16 operands, fp32 accumulators: sm_80 and later, so the same code runs on sm_90a and sm_120f.
//
// With g = lane / 4 and t = lane % 4: a0 row g, a1 row g + 8 of columns 2t, 2t+1; a2, a3 the same rows of columns
// 2t+8, 2t+9; b0 rows (k) 2t, 2t+1 and b1 rows 2t+8, 2t+9 of column g; d0, d1 row g, d2, d3 row g + 8 of columns 2t,
// 2t+1.
#pragma once

#include <cstdint>

namespace assay::cuda {

__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace assay::cuda
