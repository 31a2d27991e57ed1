// linear of bf16 by phase: decode and verify tokens by the few-token kernel, prefill tokens by cuBLASLt, whose
// algorithm depends on the Desc alone. Where its rounded sums are not the outputs yet (a residual; live counts, which
// the library cannot read; rows of y that are not 16-byte aligned) they go to scratch memory and a kernel stores them.
// Rows of x that are not 16-byte aligned go to the tiled kernel instead, in its order.
//
// Bytes: the matrix once for each step of prefill. Bound: the tensor cores' wgmma rate.
#include <fmt/format.h>

#include "backend/cublaslt/matmul_cublaslt.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_cuda_store.cuh"
#include "ops/linear/linear_rows.h"
#include "ops/plan_cuda.h"
#include "ops/tile_layout_cuda.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

constexpr int64_t kScratchBytes = int64_t{64} << 20;  // at most; more tokens take turns
constexpr int kStoreThreads = 256;

struct State {
  LinearTiles tiles;
  const std::byte* rows = nullptr;  // [n, k] as in the file
  const cublaslt::Matmul* matmul = nullptr;
};

cublaslt::MatmulShape shape_of(const LinearDesc& desc) { return {desc.n, desc.k, desc.output}; }

// Rounded sums of tokens [first, first + count): the outputs of those of them that the range holds.
__global__ void __launch_bounds__(kStoreThreads)
    linear_store(LinearOp::Args args, TokenRange range, ConstView sums, int first, int64_t n) {
  cuda::begin_overlapped();
  const TokenSpan span = token_span(args.tokens, range);
  const int token = first + static_cast<int>(blockIdx.y);
  const int64_t column = int64_t{blockIdx.x} * kStoreThreads + threadIdx.x;
  if (token < span.first || token >= span.end || column >= n) return;
  const int64_t at = blockIdx.y * sums.stride + column;
  const float sum = sums.dtype == DType::kBf16 ? cuda::to_float(static_cast<const cuda::Bf16Bits*>(sums.data)[at])
                                               : static_cast<const float*>(sums.data)[at];
  store_output(args, token, column, sum);
}

// Rows of the scratch memory are 16-byte aligned.
int64_t scratch_stride(const LinearDesc& desc) { return (desc.n + 7) / 8 * 8; }

// Tokens that the scratch memory has room for.
int64_t scratch_tokens(const LinearDesc& desc, int64_t most) {
  const int64_t fitting = kScratchBytes / (scratch_stride(desc) * static_cast<int64_t>(dtype_bytes(desc.output)));
  return std::min(most, std::max<int64_t>(fitting, 1));
}

void enqueue_prefill(const State& state, const LinearOp::Args& args, const Launch& launch) {
  if (!aligned_rows(args.x)) return enqueue_linear_gemm(state.tiles, args, TokenRange::kPrefill, launch);
  const LinearDesc& desc = state.tiles.desc;
  Workspace workspace(launch.workspace);
  const View for_library = workspace.take(DType::kU8, 1, cublaslt::kWorkspaceBytes);
  const bool live = args.tokens.live != nullptr;  // then any token up to the bound may be one of prefill
  const int64_t first = live ? 0 : args.tokens.decode, end = args.tokens.total;
  const auto multiply = [&](int64_t from, int64_t count, const View& to) {
    cublaslt::enqueue_matmul(*state.matmul, args.x.slice(from, count), state.rows, to, for_library, launch.stream);
  };
  if (!live && args.residual.data == nullptr && aligned_rows(args.y)) {
    return multiply(first, end - first, args.y.slice(first, end - first));
  }
  const int64_t turn = scratch_tokens(desc, end - first);
  const View scratch = workspace.take(desc.output, turn, scratch_stride(desc)).columns(0, desc.n);
  for (int64_t from = first; from < end; from += turn) {
    const int64_t count = std::min(turn, end - from);
    multiply(from, count, scratch.slice(0, count));
    cuda::launch("linear cublaslt store", cuda::Start::kOverlap, linear_store,
                 dim3(cuda::blocks_for(desc.n, kStoreThreads), static_cast<unsigned>(count)), kStoreThreads, 0,
                 launch.stream, args, TokenRange::kPrefill, ConstView(scratch), static_cast<int>(from), desc.n);
  }
}

void enqueue(const State& state, const LinearOp::Args& args, const Launch& launch) {
  const TokenCounts& tokens = args.tokens;
  // A bucket of decode tokens alone: one launch. Should its live counts hold prefill tokens after all, they get right
  // values in the decode order.
  const bool decode_only = tokens.decode == tokens.total;
  if (decode_only || tokens.decode > 0) {
    enqueue_linear_gemv(state.tiles, args, decode_only ? TokenRange::kAll : TokenRange::kDecode, launch);
  }
  if (!decode_only) enqueue_prefill(state, args, launch);
}

Refusal can_run(const LinearDesc& desc, const DeviceCaps& caps) {
  if (desc.format != WeightFormat::kBf16) return "weights must be bf16";
  if (Refusal refused = refuse_linear_tiles(desc, caps)) return refused;
  const auto matmul = cublaslt::find_matmul(shape_of(desc));
  if (!matmul.ok()) return matmul.error().message();
  return std::nullopt;
}

size_t workspace_bytes(const LinearDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kU8, 1, cublaslt::kWorkspaceBytes);
  counted.take(desc.output, scratch_tokens(desc, bucket.tokens), scratch_stride(desc));
  return counted.used();
}

Result<PlanPtr<LinearOp>> make(const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
                               MakeContext& context) {
  State state;
  ASSAY_ASSIGN(state.tiles, linear_tiles(desc, context.weights, weights.matrix, kCudaTileAndRowsLayout));
  ASSAY_ASSIGN(state.matmul, cublaslt::find_matmul(shape_of(desc)));
  state.rows = state.tiles.tiles + tile_rows_offset(desc.format, desc.n, desc.k);
  return cuda_row::make_plan<LinearOp, State, enqueue>(state);
}

}  // namespace

const Impl<LinearOp> kLinearCublaslt = {
    .name = "cublaslt",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<LinearOp>,
    .layout = [](const LinearDesc&) { return &kCudaTileAndRowsLayout; },
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
