// The one order of additions of a dot product over K in the CPU rows, a function of K alone: the same for one token,
// for a prefill of thousands and for any number of threads.
//
//   16 fp32 lanes start at +0; lane l adds the products of k = l, l + 16, l + 32, ... in that order.
//   The lanes are folded by halves: lane[l] += lane[l + 8] for l < 8, then by 4, by 2, by 1.
//
// A block of 16 NVFP4 weights is one step of all lanes; its weights enter as code * block scale, and the matrix' global
// scale multiplies the folded sum once. A K that is no multiple of 16 ends with a step of zeros in the missing lanes,
// which changes no bit.
//
// With bf16 activations and bf16, f16 or NVFP4 weights a product has at most 19 significant bits and is exact, so a
// fused multiply-add gives the same bits as a product and a sum (unless a product leaves the range of normal fp32
// numbers). With fp32 on either side it does not: that is another order.
#pragma once

#include "numeric/weight_format.h"
#include "ops/impl.h"

namespace assay::ops {

inline constexpr int64_t kDotLanes = 16;

constexpr bool dot_products_exact(numeric::WeightFormat format, DType activation) {
  return activation == DType::kBf16 && format != numeric::WeightFormat::kF32;
}

// For rows that multiply and then add. Rows that fuse give the first id for exact products and must name their own
// else.
constexpr OrderId dot_order(numeric::WeightFormat format, DType activation) {
  return dot_products_exact(format, activation) ? order_id("dot16 exact") : order_id("dot16 multiply, add");
}

constexpr int64_t dot_padded(int64_t k) { return (k + kDotLanes - 1) / kDotLanes * kDotLanes; }

}  // namespace assay::ops
