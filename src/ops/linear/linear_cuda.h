// What the CUDA rows of linear share: packed weights, which tokens a launch covers, and the launches.
#pragma once

#include "ops/linear/linear.h"
#include "ops/tile_layout_cuda.h"

namespace assay::ops {

struct LinearTiles {
  LinearDesc desc;
  const std::byte* tiles = nullptr;  // as kCudaTileLayout has them
  const float* factors = nullptr;    // [n padded to 16]
};

enum class TokenRange : uint8_t { kAll, kDecode, kPrefill };

Refusal refuse_linear_tiles(const LinearDesc& desc, const DeviceCaps& caps);
// Packed weights, and the kernels ready to be launched. layout: one that starts as kCudaTileLayout.
Result<LinearTiles> linear_tiles(const LinearDesc& desc, WeightProvider& weights, WeightId id,
                                 const Layout& layout = kCudaTileLayout);

// The order of additions of the few-token kernel; the same for any number of tokens. Rows of x that are not 16-byte
// aligned go to the tiled kernel instead, in its order.
OrderId linear_gemv_order(const LinearDesc& desc);
void enqueue_linear_gemv(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch);

// The same order for matrices of few chains, faster for more tokens: whether it pays, its shared-memory limit, and it.
bool linear_wide_pays(const LinearDesc& desc, int chains, int64_t tokens);
void prepare_linear_wide();
void enqueue_linear_wide(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch);

OrderId linear_gemm_order(const LinearDesc& desc);
void prepare_linear_gemm();  // raises the kernels' shared-memory limit
void enqueue_linear_gemm(const LinearTiles& weight, const LinearOp::Args& args, TokenRange range, const Launch& launch);

}  // namespace assay::ops
