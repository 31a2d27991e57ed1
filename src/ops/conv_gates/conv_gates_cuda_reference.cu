// conv_gates, the CUDA definition: one thread a token and channel for the convolution, one a token and head for norms
// and gates, one a sequence and channel for the state; fp64. Workspace: the rounded convolution.
#include "ops/conv_gates/conv_gates_rows.h"
#include "ops/reference_cuda.cuh"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  ConvGatesDesc desc;
  FileWeight conv;
  FileWeight a_log;
  FileWeight dt_bias;
};

// Input `back` tokens before the sequence's first one of this step, back in [1, width - 1].
__device__ double stored(const ConvGatesDesc& desc, const ConvGatesOp::Args& args, int sequence, int64_t channel,
                         int back) {
  const int32_t read = args.batch.state_read[sequence];
  if (read < 0) return 0.0;
  return load(args.state.conv_dtype, args.state.conv,
              read * args.state.conv_stride + channel * (desc.width - 1) + desc.width - 1 - back);
}

// u at token t of the step, which may lie before the sequence's first token.
__device__ double input(const ConvGatesDesc& desc, const ConvGatesOp::Args& args, int sequence, int64_t channel,
                        int t) {
  const int first = args.batch.query_start[sequence];
  return t >= first ? load(args.qkv, t, channel) : stored(desc, args, sequence, channel, first - t);
}

__global__ void conv(State state, ConvGatesOp::Args args, float* convolved) {
  const ConvGatesDesc& desc = state.desc;
  const int64_t channels = desc.channels(), index = thread_index(), t = index / channels, channel = index % channels;
  if (t >= live_total(args.batch.tokens)) return;
  double sum = 0;
  for (int j = 0; j < desc.width; ++j) {
    sum +=
        value(state.conv, channel, j) * input(desc, args, args.batch.sequence_of[t], channel, t - desc.width + 1 + j);
  }
  convolved[index] = static_cast<float>(round_to(desc.activation, silu(sum)));
}

__device__ void store_normed(const View& to, int64_t t, int64_t first, const float* from, int dim, double factor) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += double{from[i]} * from[i];
  for (int i = 0; i < dim; ++i) store(to, t, first + i, from[i] / sqrt(squares + 1e-6) * factor);
}

__global__ void heads(State state, ConvGatesOp::Args args, const float* convolved) {
  const ConvGatesDesc& desc = state.desc;
  const int units = 2 * desc.key_heads + desc.value_heads;
  const int64_t t = thread_index() / units;
  const int unit = static_cast<int>(thread_index() % units);
  if (t >= live_total(args.batch.tokens)) return;
  const float* row = convolved + t * desc.channels();
  const int dim = desc.key_dim, keys = desc.key_heads;
  if (unit < keys) {
    store_normed(args.q, t, unit * dim, row + unit * dim, dim, 1.0 / sqrt(double(dim)));
  } else if (unit < 2 * keys) {
    store_normed(args.k, t, (unit - keys) * dim, row + unit * dim, dim, 1.0);
  } else {
    const int head = unit - 2 * keys;
    const int64_t first = int64_t{head} * desc.value_dim;
    for (int i = 0; i < desc.value_dim; ++i) store(args.v, t, first + i, row[2 * keys * dim + first + i]);
    const double x = load(args.a, t, head) + value(state.dt_bias, 0, head);
    const double softplus = x > 20 ? x : log1p(exp(x));
    store(args.g, t, head, -exp(value(state.a_log, 0, head)) * softplus);
    store(args.beta, t, head, sigmoid(load(args.b, t, head)));
  }
}

__global__ void leave_state(ConvGatesDesc desc, ConvGatesOp::Args args, uint32_t* flags) {
  const int64_t channels = desc.channels(), channel = thread_index() % channels;
  const int sequence = static_cast<int>(thread_index() / channels);
  if (sequence >= args.batch.sequences) return;
  const int end = end_token(args.batch, sequence);
  if (first_token(args.batch, sequence) >= end) return;
  const int64_t to = args.batch.state_write[sequence] * args.state.conv_stride + channel * (desc.width - 1);
  bool finite = true;
  for (int i = 0; i < desc.width - 1; ++i) {
    const double u = input(desc, args, sequence, channel, end - (desc.width - 1) + i);
    store(args.state.conv_dtype, args.state.conv, to + i, u);
    finite = finite && isfinite(u);
  }
  flag(flags, Sentinel::kNonFiniteState, !finite);
}

void enqueue(const State& state, const ConvGatesOp::Args& args, const Launch& launch) {
  const ConvGatesDesc& desc = state.desc;
  const int64_t tokens = args.batch.tokens.total, channels = desc.channels();
  auto* convolved = static_cast<float*>(Workspace(launch.workspace).take(DType::kF32, tokens, channels).data);
  cuda::launch("conv_gates cuda_reference conv", conv, cuda::blocks_for(tokens * channels, 64), 64, 0, launch.stream,
               state, args, convolved);
  cuda::launch("conv_gates cuda_reference heads", heads,
               cuda::blocks_for(tokens * (2 * desc.key_heads + desc.value_heads), 64), 64, 0, launch.stream, state,
               args, static_cast<const float*>(convolved));
  cuda::launch("conv_gates cuda_reference state", leave_state, cuda::blocks_for(args.batch.sequences * channels, 64),
               64, 0, launch.stream, desc, args, cuda_row::flag_word(launch));
}

size_t workspace_bytes(const ConvGatesDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  counted.take(DType::kF32, bucket.tokens, desc.channels());
  return counted.used();
}

Result<PlanPtr<ConvGatesOp>> make(const ConvGatesDesc& desc, const Bucket&, const ConvGatesOp::Weights& weights,
                                  MakeContext& context) {
  State state{desc, {}, {}, {}};
  ASSAY_ASSIGN(state.conv, cuda_file_matrix(context.weights, weights.conv, desc.channels(), desc.width));
  ASSAY_ASSIGN(state.a_log, cuda_file_matrix(context.weights, weights.a_log, 1, desc.value_heads));
  ASSAY_ASSIGN(state.dt_bias, cuda_file_matrix(context.weights, weights.dt_bias, 1, desc.value_heads));
  return cuda_row::make_plan<ConvGatesOp, State, enqueue>(state);
}

}  // namespace

const Impl<ConvGatesOp> kConvGatesCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<ConvGatesOp>,
    .layout = [](const ConvGatesDesc&) { return &kCudaFileLayout; },
    .can_run = refuse_conv_gates,
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
