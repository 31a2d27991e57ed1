// linear by phase: decode and verify tokens by the few-token kernel, prefill tokens by the tiled one. Which kernel a
// token meets depends on its phase alone, so its bits do not depend on the batch.
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_rows.h"
#include "ops/plan_cuda.h"
#include "ops/tile_layout_cuda.h"

namespace assay::ops {
namespace {

void enqueue(const LinearTiles& weight, const LinearOp::Args& args, const Launch& launch) {
  const TokenCounts& tokens = args.tokens;
  // A bucket of decode tokens alone: one launch. Should its live counts hold prefill tokens after all, they get right
  // values in the decode order.
  const bool decode_only = tokens.decode == tokens.total;
  if (decode_only || tokens.decode > 0) {
    enqueue_linear_gemv(weight, args, decode_only ? TokenRange::kAll : TokenRange::kDecode, launch);
  }
  if (!decode_only) enqueue_linear_gemm(weight, args, TokenRange::kPrefill, launch);
}

}  // namespace

const Impl<LinearOp> kLinearCudaPhased = {
    .name = "cuda_phased",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<LinearOp>,
    .layout = [](const LinearDesc&) { return &kCudaTileLayout; },
    .can_run = refuse_linear_tiles,
    .workspace_bytes = cuda_row::no_workspace<LinearOp>,
    .make = [](const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<LinearOp>> {
      ASSAY_ASSIGN(const LinearTiles tiles, linear_tiles(desc, context.weights, weights.matrix));
      return cuda_row::make_plan<LinearOp, LinearTiles, enqueue>(tiles);
    },
};

}  // namespace assay::ops
