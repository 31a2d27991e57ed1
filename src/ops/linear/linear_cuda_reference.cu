// linear, the CUDA definition: one thread an output, its sum over k in fp64.
#include "ops/checked_source.h"
#include "ops/linear/linear_rows.h"
#include "ops/reference_cuda.cuh"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  LinearDesc desc;
  FileWeight weight;
};

__global__ void linear(LinearDesc desc, FileWeight weight, LinearOp::Args args) {
  const int64_t index = thread_index();
  const int64_t t = index / desc.n, n = index % desc.n;
  if (t >= live_total(args.tokens)) return;
  int64_t row = n;
  int32_t shard = 0;
  for (; row >= matrix(weight, shard).rows; ++shard) row -= matrix(weight, shard).rows;
  const FileMatrix& part = matrix(weight, shard);
  double sum = 0;
  for (int64_t k = 0; k < desc.k; ++k) sum += load(args.x, t, k) * unscaled(weight, part, row, k);
  double y = round_to(desc.output, sum * part.global_scale);
  if (args.residual.data != nullptr) y += load(args.residual, t, n);
  store(args.y, t, n, y);
}

void enqueue(const State& state, const LinearOp::Args& args, const Launch& launch) {
  cuda::launch("linear cuda_reference", linear, cuda::blocks_for(args.tokens.total * state.desc.n, 128), 128, 0,
               launch.stream, state.desc, state.weight, args);
}

Result<PlanPtr<LinearOp>> make(const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
                               MakeContext& context) {
  ASSAY_TRY(checked_source(context.weights, weights.matrix, desc.n, desc.k, desc.format));
  ASSAY_ASSIGN(const FileWeight weight, cuda_file_weight(context.weights, weights.matrix));
  return cuda_row::make_plan<LinearOp, State, enqueue>({desc, weight});
}

}  // namespace

const Impl<LinearOp> kLinearCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<LinearOp>,
    .layout = [](const LinearDesc&) { return &kCudaFileLayout; },
    .can_run = [](const LinearDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes = cuda_row::no_workspace<LinearOp>,
    .make = make,
};

}  // namespace assay::ops
