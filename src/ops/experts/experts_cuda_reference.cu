// experts, the CUDA definition: one thread a hidden value of a (token, expert) pair, then one thread an output; sums in
// fp64. Workspace: the rounded hidden values.
#include "ops/experts/experts_rows.h"
#include "ops/reference_cuda.cuh"
#include "ops/run.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  ExpertsDesc desc;
  FileWeight weight;
};

__device__ int32_t expert_of(const ExpertsOp::Args& args, int64_t t, int slot) {
  return static_cast<const int32_t*>(args.ids.data)[t * args.ids.stride + slot];
}

__global__ void experts_hidden(ExpertsDesc desc, FileWeight weight, ExpertsOp::Args args, float* hidden) {
  const int64_t index = thread_index();
  const int64_t pair = index / desc.intermediate, row = index % desc.intermediate, t = pair / desc.top_k;
  if (t >= live_total(args.tokens)) return;
  const int64_t first = int64_t{3} * expert_of(args, t, static_cast<int>(pair % desc.top_k));
  const FileMatrix &gate = matrix(weight, first), &up = matrix(weight, first + 1);
  double gate_sum = 0, up_sum = 0;
  for (int64_t k = 0; k < desc.hidden; ++k) {
    const double x = load(args.x, t, k);
    gate_sum += x * unscaled(weight, gate, row, k);
    up_sum += x * unscaled(weight, up, row, k);
  }
  hidden[index] =
      static_cast<float>(round_to(desc.activation, silu(gate_sum * gate.global_scale) * (up_sum * up.global_scale)));
}

// The slot of token t with the least expert id above `below`.
__device__ int next_slot(const ExpertsOp::Args& args, int64_t t, int top_k, int below) {
  int best = -1;
  for (int slot = 0; slot < top_k; ++slot) {
    const int32_t id = expert_of(args, t, slot);
    if (id > below && (best < 0 || id < expert_of(args, t, best))) best = slot;
  }
  return best;
}

__global__ void experts_down(ExpertsDesc desc, FileWeight weight, ExpertsOp::Args args, const float* hidden) {
  const int64_t index = thread_index();
  const int64_t t = index / desc.hidden, col = index % desc.hidden;
  if (t >= live_total(args.tokens)) return;
  double sum = 0;
  int id = -1;
  for (int i = 0; i < desc.top_k; ++i) {
    const int slot = next_slot(args, t, desc.top_k, id);
    if (slot < 0) break;
    id = expert_of(args, t, slot);
    const FileMatrix& down = matrix(weight, int64_t{3} * id + 2);
    const float* h = hidden + (t * desc.top_k + slot) * desc.intermediate;
    double part = 0;
    for (int64_t k = 0; k < desc.intermediate; ++k) part += h[k] * unscaled(weight, down, col, k);
    sum += load(args.weights, t, slot) * (part * down.global_scale);
  }
  if (args.shared.data != nullptr) sum += load(args.shared_scale, t, 0) * load(args.shared, t, col);
  double y = round_to(desc.activation, sum);
  if (args.residual.data != nullptr) y += load(args.residual, t, col);
  store(args.y, t, col, y);
}

void enqueue(const State& state, const ExpertsOp::Args& args, const Launch& launch) {
  const ExpertsDesc& desc = state.desc;
  const int64_t pairs = int64_t{args.tokens.total} * desc.top_k;
  const View hidden = Workspace(launch.workspace).take(DType::kF32, pairs, desc.intermediate);
  auto* values = static_cast<float*>(hidden.data);
  cuda::launch("experts cuda_reference hidden", experts_hidden, cuda::blocks_for(pairs * desc.intermediate, 64), 64, 0,
               launch.stream, desc, state.weight, args, values);
  tap(launch, "experts.hidden", hidden);
  cuda::launch("experts cuda_reference down", experts_down, cuda::blocks_for(args.tokens.total * desc.hidden, 64), 64,
               0, launch.stream, desc, state.weight, args, static_cast<const float*>(values));
}

size_t workspace_bytes(const ExpertsDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kF32, int64_t{bucket.tokens} * desc.top_k, desc.intermediate);
  return counted.used();
}

Result<PlanPtr<ExpertsOp>> make(const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
                                MakeContext& context) {
  ASSAY_TRY(checked_experts(context.weights, weights.experts, desc));
  ASSAY_ASSIGN(const FileWeight weight, cuda_file_weight(context.weights, weights.experts));
  return cuda_row::make_plan<ExpertsOp, State, enqueue>({desc, weight});
}

}  // namespace

const Impl<ExpertsOp> kExpertsCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<ExpertsOp>,
    .layout = [](const ExpertsDesc&) { return &kCudaFileLayout; },
    .can_run = [](const ExpertsDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
