// router, the CUDA definition: one thread a logit (fp64 sum, then rounded), then one thread a token.
// Workspace: fp64 logits, the shared gate's last.
#include <limits>

#include "ops/reference_cuda.cuh"
#include "ops/router/router_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  RouterDesc desc;
  FileWeight gate;
  FileWeight shared_gate;
};

__global__ void router_logits(RouterDesc desc, FileWeight gate, FileWeight shared_gate, RouterOp::Args args,
                              double* logits) {
  const int64_t index = thread_index(), columns = desc.experts + 1;
  const int64_t t = index / columns, e = index % columns;
  const bool shared = e == desc.experts;
  if (t >= live_total(args.tokens) || (shared && !desc.shared_gate)) return;
  const FileWeight& weight = shared ? shared_gate : gate;
  double sum = 0;
  for (int64_t k = 0; k < desc.hidden; ++k) {
    sum += load(args.x, t, k) * unscaled(weight, matrix(weight, 0), shared ? 0 : e, k);
  }
  logits[index] = round_to(desc.activation, sum * matrix(weight, 0).global_scale);
}

__device__ double rank(double logit) { return isnan(logit) ? -std::numeric_limits<double>::infinity() : logit; }

// The largest logit, the lowest index among equals, that is not among the first `count` ids.
__device__ int best_but(const int32_t* ids, int count, const double* logits, int experts) {
  int best = -1;
  for (int e = 0; e < experts; ++e) {
    bool taken = false;
    for (int i = 0; i < count; ++i) taken = taken || ids[i] == e;
    if (!taken && (best < 0 || rank(logits[e]) > rank(logits[best]))) best = e;
  }
  return best;
}

__global__ void router_choose(RouterDesc desc, RouterOp::Args args, const double* all_logits) {
  const int64_t t = thread_index();
  if (t >= live_total(args.tokens)) return;
  const double* logits = all_logits + t * (desc.experts + 1);
  auto* ids = static_cast<int32_t*>(args.ids.data) + t * args.ids.stride;
  const int32_t* forced = args.forced_ids.data == nullptr
                              ? nullptr
                              : static_cast<const int32_t*>(args.forced_ids.data) + t * args.forced_ids.stride;
  bool finite = true;
  for (int e = 0; e < desc.experts; ++e) {
    finite = finite && logits[e] < std::numeric_limits<double>::infinity();
    if (args.logits.data != nullptr) store(args.logits, t, e, logits[e]);
  }
  if (desc.shared_gate) store(args.shared_scale, t, 0, sigmoid(logits[desc.experts]));
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int i = 0; i < desc.top_k; ++i) {
    ids[i] = forced != nullptr ? forced[i] : best_but(ids, i, logits, desc.experts);
    largest = max(largest, rank(logits[ids[i]]));
  }
  for (int i = 0; i < desc.top_k; ++i) sum += exp(logits[ids[i]] - largest);
  for (int i = 0; i < desc.top_k; ++i) {
    const double weight = exp(logits[ids[i]] - largest) / sum;
    store(args.weights, t, i, finite ? weight : std::numeric_limits<double>::quiet_NaN());
  }
}

void enqueue(const State& state, const RouterOp::Args& args, const Launch& launch) {
  const int64_t tokens = args.tokens.total, columns = state.desc.experts + 1;
  auto* logits = static_cast<double*>(Workspace(launch.workspace).take(DType::kF64, tokens, columns).data);
  cuda::launch("router cuda_reference logits", router_logits, cuda::blocks_for(tokens * columns, 64), 64, 0,
               launch.stream, state.desc, state.gate, state.shared_gate, args, logits);
  cuda::launch("router cuda_reference choose", router_choose, cuda::blocks_for(tokens, 32), 32, 0, launch.stream,
               state.desc, args, static_cast<const double*>(logits));
}

size_t workspace_bytes(const RouterDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kF64, bucket.tokens, desc.experts + 1);
  return counted.used();
}

Result<PlanPtr<RouterOp>> make(const RouterDesc& desc, const Bucket&, const RouterOp::Weights& weights,
                               MakeContext& context) {
  ASSAY_TRY(router_matrices(context.weights, desc, weights));
  State state{desc, {}, {}};
  ASSAY_ASSIGN(state.gate, cuda_file_weight(context.weights, weights.gate));
  if (desc.shared_gate) {
    ASSAY_ASSIGN(state.shared_gate, cuda_file_weight(context.weights, weights.shared_gate));
  }
  return cuda_row::make_plan<RouterOp, State, enqueue>(state);
}

}  // namespace

const Impl<RouterOp> kRouterCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<RouterOp>,
    .layout = [](const RouterDesc&) { return &kCudaFileLayout; },
    .can_run = [](const RouterDesc& desc, const DeviceCaps&) { return refuse_router(desc); },
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
