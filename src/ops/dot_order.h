// The orders of additions of a dot product over K in the CPU rows, functions of K alone: the same for one token, for a
// prefill of thousands and for any number of threads.
//
// "dot16":
//   16 fp32 lanes start at +0; lane l adds the products of k = l, l + 16, l + 32, ... in that order.
//   The lanes are folded by halves: lane[l] += lane[l + 8] for l < 8, then by 4, by 2, by 1.
//
// A block of 16 NVFP4 weights is one step of all lanes; its weights enter as code * block scale, and the matrix' global
// scale multiplies the folded sum once. A K that is no multiple of 16 ends with a step of zeros in the missing lanes,
// which changes no bit.
//
// With bf16 activations and bf16 or f16 weights a product has at most 19 significant bits and is exact, so a
// fused multiply-add gives the same bits as a product and a sum (unless a product leaves the range of normal fp32
// numbers). With fp32 on either side it does not: that is another order.
//
// "fixed blocks", NVFP4 weights with bf16 activations. A block of 16 is summed exactly, in integers:
//   g = 2^(e - 21)                   2^e the power of two in the block's largest |x|, e at least -106
//   S = sum 2 code_k * q_k           q_k = x_k / g to the nearest even integer, |q| < 2^22
//   16 fp32 lanes start at +0; lane l adds float(S) * (block scale * g / 2) of the blocks l, l + 16, l + 32, ...
//   The lanes are folded as above.
//   Infinities of a block count as q = 1 or -1, its other x as 0, and g as infinity; with a NaN g is NaN.
// An x of at least 2^-14 times 2^e enters exactly, a smaller one with an error of at most g / 2, 2^-22 times 2^e.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

#include "numeric/weight_format.h"
#include "ops/impl.h"

namespace assay::ops {

inline constexpr int64_t kDotLanes = 16;

constexpr bool dot_products_exact(numeric::WeightFormat format, DType activation) {
  return activation == DType::kBf16 && format != numeric::WeightFormat::kF32;
}

constexpr bool dot_fixed(numeric::WeightFormat format, DType activation) {
  return activation == DType::kBf16 && format == numeric::WeightFormat::kNvfp4;
}

// g of a block of activations.
inline double fixed_grid(double largest) {
  constexpr int kLeastExponent = -106, kBits = 21;
  const int exponent = largest > 0 ? std::max(std::ilogb(largest), kLeastExponent) : kLeastExponent;
  return std::ldexp(1.0, exponent - kBits);
}

// For rows that multiply and then add; its name is part of an op's order. Rows that fuse give the same for exact
// products and fixed blocks and must name their own else.
constexpr std::string_view dot_order(numeric::WeightFormat format, DType activation) {
  if (dot_fixed(format, activation)) return "fixed blocks";
  return dot_products_exact(format, activation) ? "dot16 exact" : "dot16 multiply, add";
}

constexpr int64_t dot_padded(int64_t k) { return (k + kDotLanes - 1) / kDotLanes * kDotLanes; }

}  // namespace assay::ops
