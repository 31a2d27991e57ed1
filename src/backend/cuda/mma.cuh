// mma.sync with fp32 accumulators, and ldmatrix: sm_80 and later, so the same code runs on sm_90a and sm_120f.
//
// g = lane / 4, t = lane % 4. d0, d1: row g, d2, d3: row g + 8 of columns 2t, 2t+1.
// m16n8k16, bf16: a0 row g, a1 row g + 8 of columns 2t, 2t+1; a2, a3 the same rows of columns 2t+8, 2t+9; b0 rows (k)
// 2t, 2t+1 and b1 rows 2t+8, 2t+9 of column g.
// m16n8k8, tf32: a0 row g, a1 row g + 8 of column t; a2, a3 the same rows of column t + 4; b0 row t, b1 row t + 4 of
// column g.
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

__device__ __forceinline__ void mma_tf32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// value = high + low up to 2^-21 of it, as the tensor cores read them: they ignore the 13 bits that tf32 lacks.
// |low| < 2^-10 |value|. (cvt.rna.tf32 is nearer, and slower than the two instructions here.)
struct Tf32Pair {
  uint32_t high, low;
};
__device__ __forceinline__ Tf32Pair split_tf32(float value) {
  const uint32_t high = __float_as_uint(value) & 0xFFFFE000u;
  return {high, __float_as_uint(value - __uint_as_float(high))};
}

// Four 8x8 matrices of bf16; lanes 8i .. 8i + 7 hold the shared-memory addresses of the rows of matrix i. Register i:
// row g, columns 2t, 2t+1 of matrix i, or (transposed) rows 2t, 2t+1 of column g.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace assay::cuda
