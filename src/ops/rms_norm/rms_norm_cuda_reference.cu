// rms_norm, the CUDA definition: one thread a chunk, fp64.
#include "ops/checked_source.h"
#include "ops/reference_cuda.cuh"
#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  RmsNormDesc desc;
  FileWeight weight;
};

__global__ void rms_norm(RmsNormDesc desc, FileWeight weight, RmsNormOp::Args args, uint32_t* flags) {
  const int64_t index = thread_index();
  const int64_t t = index / desc.groups, first = index % desc.groups * desc.width;
  if (t >= live_total(args.tokens)) return;
  const int64_t row = args.gather == nullptr ? t : args.gather[t];
  double squares = 0;
  bool finite = true;
  for (int64_t i = 0; i < desc.width; ++i) {
    const double x = load(args.x, row, first + i);
    finite = finite && isfinite(x);
    squares += x * x;
  }
  const double scale = 1.0 / sqrt(squares / desc.width + desc.eps);
  for (int64_t i = 0; i < desc.width; ++i) {
    const double n = load(args.x, row, first + i) * scale, w = value(weight, 0, i);
    double y = n * (1.0 + w);
    if (desc.kind == NormKind::kGated) {
      const double z = load(args.z, t, first + i);
      y = n * w * (desc.sigmoid_gate ? sigmoid(z) : silu(z));
    }
    store(args.y, t, first + i, y);
  }
  flag(flags, Sentinel::kNonFiniteResidual, !finite && desc.kind == NormKind::kZeroCentred);
}

void enqueue(const State& state, const RmsNormOp::Args& args, const Launch& launch) {
  cuda::launch("rms_norm cuda_reference", rms_norm, cuda::blocks_for(args.tokens.total * state.desc.groups, 64), 64, 0,
               launch.stream, state.desc, state.weight, args, cuda_row::flag_word(launch));
}

Result<PlanPtr<RmsNormOp>> make(const RmsNormDesc& desc, const Bucket&, const RmsNormOp::Weights& weights,
                                MakeContext& context) {
  ASSAY_TRY(checked_vector(context.weights, weights.weight, desc.width));
  ASSAY_ASSIGN(const FileWeight weight, cuda_file_weight(context.weights, weights.weight));
  return cuda_row::make_plan<RmsNormOp, State, enqueue>({desc, weight});
}

}  // namespace

const Impl<RmsNormOp> kRmsNormCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<RmsNormOp>,
    .layout = [](const RmsNormDesc&) { return &kCudaFileLayout; },
    .can_run = [](const RmsNormDesc& desc, const DeviceCaps&) { return cuda_row::refuse_dtype(desc.activation); },
    .workspace_bytes = cuda_row::no_workspace<RmsNormOp>,
    .make = make,
};

}  // namespace assay::ops
