// embed of a bf16 table: one block a token, copied 2 bytes a thread. Bytes: one table row in and out a token.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/embed/embed_rows.h"
#include "ops/file_layout_cuda.h"
#include "ops/plan_cuda.h"

namespace assay::ops {
namespace {

struct State {
  EmbedDesc desc;
  FileWeight table;
};

__global__ void embed_gather(EmbedDesc desc, FileWeight table, EmbedOp::Args args) {
  cuda::begin_overlapped();
  const int64_t t = blockIdx.x;
  if (t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  const int64_t offset = reinterpret_cast<const FileMatrix*>(table.blob)->data;
  const int64_t id = static_cast<const int32_t*>(args.ids.data)[t * args.ids.stride];
  const auto* from = reinterpret_cast<const cuda::Bf16Bits*>(table.blob + offset) + id * desc.hidden;
  for (int64_t i = threadIdx.x; i < desc.hidden; i += blockDim.x) {
    const int64_t to = t * args.y.stride + i;
    if (desc.activation == DType::kBf16) {
      static_cast<cuda::Bf16Bits*>(args.y.data)[to] = from[i];
    } else {
      static_cast<float*>(args.y.data)[to] = cuda::to_float(from[i]);
    }
  }
}

void enqueue(const State& state, const EmbedOp::Args& args, const Launch& launch) {
  cuda::launch("embed cuda_gather", cuda::Start::kOverlap, embed_gather, args.tokens.total, 256, 0, launch.stream,
               state.desc, state.table, args);
}

}  // namespace

const Impl<EmbedOp> kEmbedCudaGather = {
    .name = "cuda_gather",
    .backend = Backend::kCuda,
    .order = [](const EmbedDesc&) { return kEmbedOrder; },
    .layout = [](const EmbedDesc&) { return &kCudaFileLayout; },
    .can_run = [](const EmbedDesc& desc, const DeviceCaps&) -> Refusal {
      if (desc.format != numeric::WeightFormat::kBf16) return "the table must be bf16";
      return cuda_row::refuse_dtype(desc.activation);
    },
    .workspace_bytes = cuda_row::no_workspace<EmbedOp>,
    .make = [](const EmbedDesc& desc, const Bucket&, const EmbedOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<EmbedOp>> {
      ASSAY_TRY(checked_table(context.weights, weights.table, desc));
      ASSAY_ASSIGN(const FileWeight table, cuda_file_weight(context.weights, weights.table));
      return cuda_row::make_plan<EmbedOp, State, enqueue>({desc, table});
    },
};

}  // namespace assay::ops
