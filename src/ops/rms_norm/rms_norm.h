// rms_norm: root-mean-square norm over chunks of a row, two kinds.
//
//   n = x * rsqrt(mean(x^2) + eps)           mean over the `width` values of one chunk
//   kZeroCentred: y = round(n * (1 + w))
//   kGated:       y = round(n * w * act(z))    act = silu, or sigmoid when sigmoid_gate
//
// x, y, z: activation dtype, [T, groups * width]; each of the `groups` chunks of a row is normed by itself with the
// same w [width]. Everything is fp32 until the one rounding at the end. y may be x. Sentinel: kZeroCentred flags a
// non-finite x (it is the next reader of the residual stream). Source: Qwen3.5 (HF modeling_qwen3_5): input,
// post-attention, q, k and final norms are zero centred; the norm of the gated delta net is gated and has no + 1.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

enum class NormKind : uint8_t { kZeroCentred, kGated };

struct RmsNormDesc {
  NormKind kind = NormKind::kZeroCentred;
  int64_t width = 0;
  int64_t groups = 1;
  float eps = 1e-6f;
  bool sigmoid_gate = false;
  DType activation = DType::kBf16;
  bool operator==(const RmsNormDesc&) const = default;
};
std::string describe(const RmsNormDesc& desc);

struct RmsNormOp {
  static constexpr std::string_view kName = "rms_norm";
  using Desc = RmsNormDesc;
  struct Weights {
    WeightId weight;  // [1, width]
  };
  struct Args {
    TokenCounts tokens;
    ConstView x;  // where a sum of squares is beyond fp32 (|x| from 1.8e19 on), n is 0, as in the source: no flag
    ConstView z;  // kGated only
    View y;
    const int32_t* gather = nullptr;  // row t of y is the norm of row gather[t] of x; null: of row t
  };
  static std::span<const Impl<RmsNormOp>> impls();
};

}  // namespace assay::ops
