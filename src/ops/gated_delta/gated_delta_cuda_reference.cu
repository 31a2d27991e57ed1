// gated_delta, the CUDA definition: one thread a state column of a sequence and value head, token by token; sums in
// fp64, the state fp32 after every token.
#include "ops/gated_delta/gated_delta_rows.h"
#include "ops/reference_cuda.cuh"

namespace assay::ops {
namespace {

using namespace reference_cuda;

__global__ void gated_delta(GatedDeltaDesc desc, GatedDeltaOp::Args args, uint32_t* flags) {
  const int64_t index = thread_index();
  const int64_t column = index % desc.value_dim, head = index / desc.value_dim % desc.value_heads;
  const int64_t sequence = index / desc.value_dim / desc.value_heads;
  if (sequence >= args.batch.sequences) return;
  const int first = first_token(args.batch, sequence), end = end_token(args.batch, sequence);
  if (first >= end) return;
  const int64_t offset = head * desc.key_dim * desc.value_dim + column;
  const int32_t read = args.batch.state_read[sequence];
  const float* before = read < 0 ? nullptr : args.state.delta + read * args.state.delta_stride + offset;
  float* state = args.state.delta + args.batch.state_write[sequence] * args.state.delta_stride + offset;
  for (int64_t i = 0; i < desc.key_dim; ++i) state[i * desc.value_dim] = read < 0 ? 0.0f : before[i * desc.value_dim];
  const int64_t first_key = head / (desc.value_heads / desc.key_heads) * desc.key_dim;
  for (int t = first; t < end; ++t) {
    const double decay = exp(load(args.g, t, head));
    double memory = 0;
    for (int64_t i = 0; i < desc.key_dim; ++i) {
      memory += decay * state[i * desc.value_dim] * load(args.k, t, first_key + i);
    }
    const double delta = load(args.beta, t, head) * (load(args.v, t, head * desc.value_dim + column) - memory);
    double out = 0;
    for (int64_t i = 0; i < desc.key_dim; ++i) {
      float& element = state[i * desc.value_dim];
      element = static_cast<float>(decay * element + load(args.k, t, first_key + i) * delta);
      out += element * load(args.q, t, first_key + i);
    }
    store(args.out, t, head * desc.value_dim + column, out);
  }
  bool finite = true;
  for (int64_t i = 0; i < desc.key_dim; ++i) finite = finite && isfinite(state[i * desc.value_dim]);
  flag(flags, Sentinel::kNonFiniteState, !finite);
}

void enqueue(const GatedDeltaDesc& desc, const GatedDeltaOp::Args& args, const Launch& launch) {
  const int64_t columns = int64_t{args.batch.sequences} * desc.value_heads * desc.value_dim;
  cuda::launch("gated_delta cuda_reference", gated_delta, cuda::blocks_for(columns, 64), 64, 0, launch.stream, desc,
               args, cuda_row::flag_word(launch));
}

}  // namespace

const Impl<GatedDeltaOp> kGatedDeltaCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<GatedDeltaOp>,
    .layout = cuda_row::no_layout<GatedDeltaOp>,
    .can_run = refuse_gated_delta,
    .workspace_bytes = cuda_row::no_workspace<GatedDeltaOp>,
    .make = [](const GatedDeltaDesc& desc, const Bucket&, const NoWeights&, MakeContext&)
        -> Result<PlanPtr<GatedDeltaOp>> { return cuda_row::make_plan<GatedDeltaOp, GatedDeltaDesc, enqueue>(desc); },
};

}  // namespace assay::ops
