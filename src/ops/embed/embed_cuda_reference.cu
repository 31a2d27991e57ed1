// embed, the CUDA definition: one thread a value.
#include "ops/embed/embed_rows.h"
#include "ops/reference_cuda.cuh"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  EmbedDesc desc;
  FileWeight table;
};

__global__ void embed(EmbedDesc desc, FileWeight table, EmbedOp::Args args) {
  const int64_t index = thread_index();
  const int64_t t = index / desc.hidden, col = index % desc.hidden;
  if (t >= live_total(args.tokens)) return;
  const int32_t id = static_cast<const int32_t*>(args.ids.data)[t * args.ids.stride];
  store(args.y, t, col, value(table, id, col));
}

void enqueue(const State& state, const EmbedOp::Args& args, const Launch& launch) {
  const int64_t values = args.tokens.total * state.desc.hidden;
  cuda::launch("embed cuda_reference", embed, cuda::blocks_for(values, 128), 128, 0, launch.stream, state.desc,
               state.table, args);
}

Result<PlanPtr<EmbedOp>> make(const EmbedDesc& desc, const Bucket&, const EmbedOp::Weights& weights,
                              MakeContext& context) {
  ASSAY_TRY(checked_table(context.weights, weights.table, desc));
  ASSAY_ASSIGN(const FileWeight table, cuda_file_weight(context.weights, weights.table));
  return cuda_row::make_plan<EmbedOp, State, enqueue>({desc, table});
}

}  // namespace

const Impl<EmbedOp> kEmbedCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = [](const EmbedDesc&) { return kEmbedOrder; },
    .layout = [](const EmbedDesc&) { return &kCudaFileLayout; },
    .can_run = [](const EmbedDesc& desc, const DeviceCaps&) { return cuda_row::refuse_dtype(desc.activation); },
    .workspace_bytes = cuda_row::no_workspace<EmbedOp>,
    .make = make,
};

}  // namespace assay::ops
