// The tokens of a launch and the last step of an output, the same in every CUDA row of linear.
#pragma once

#include "backend/cuda/convert.cuh"
#include "ops/linear/linear_cuda.h"

namespace assay::ops {

struct TokenSpan {
  int first = 0;
  int end = 0;
};

__device__ __forceinline__ TokenSpan token_span(const TokenCounts& tokens, TokenRange range) {
  const int decode = tokens.live == nullptr ? tokens.decode : tokens.live[0];
  const int total = tokens.live == nullptr ? tokens.total : tokens.live[1];
  return {range == TokenRange::kPrefill ? decode : 0, range == TokenRange::kDecode ? decode : total};
}

// The most tokens the range can hold: what a grid must cover.
inline int64_t most_tokens(const TokenCounts& tokens, TokenRange range) {
  if (range == TokenRange::kDecode) return tokens.decode;
  if (range == TokenRange::kPrefill && tokens.live == nullptr) return tokens.total - tokens.decode;
  return tokens.total;
}

inline bool aligned_rows(const ConstView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride * dtype_bytes(view.dtype) % 16 == 0;
}

// y[token, n] = round(sum), or round(residual + round(sum)).
__device__ __forceinline__ void store_output(const LinearOp::Args& args, int64_t token, int64_t n, float sum) {
  if (args.y.dtype == DType::kBf16) {
    if (args.residual.data != nullptr) {
      const auto* residual = static_cast<const cuda::Bf16Bits*>(args.residual.data);
      sum = cuda::to_float(residual[token * args.residual.stride + n]) + cuda::round_bf16(sum);
    }
    static_cast<cuda::Bf16Bits*>(args.y.data)[token * args.y.stride + n] = cuda::to_bf16(sum);
    return;
  }
  if (args.residual.data != nullptr) {
    sum += static_cast<const float*>(args.residual.data)[token * args.residual.stride + n];
  }
  static_cast<float*>(args.y.data)[token * args.y.stride + n] = sum;
}

}  // namespace assay::ops
