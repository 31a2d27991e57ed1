// conv_gates: one block of 128 threads a token and head (query, key, value heads). The block of a sequence's last token
// also leaves the conv state, in a slot that this step does not read. Bytes: qkv up to `width` times from L2.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/conv_gates/conv_gates_rows.h"
#include "ops/file_layout_cuda.h"
#include "ops/plan_cuda.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kThreads = 128;
constexpr int kMaxValues = 4;  // a thread
constexpr int kUsualWidth = 4;

struct State {
  ConvGatesDesc desc;
  const float* conv = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
};

// The inputs of one sequence, this step's and those of its state.
struct Inputs {
  const Bf16Bits* qkv;
  int64_t stride;
  const Bf16Bits* state;  // null: zeros
  int first;              // the sequence's first token of the step
  int width;
  __device__ __forceinline__ Bf16Bits at(int64_t channel, int token) const {
    if (token >= first) return qkv[token * stride + channel];
    if (state == nullptr) return 0;
    return state[channel * (width - 1) + width - 1 + token - first];
  }
};

// kTogether loads at a time are under way.
template <int kTogether>
__device__ __forceinline__ float convolve(const float* weights, const Inputs& inputs, int64_t channel, int t,
                                          int width) {
  float sum = 0.0f;
  for (int first = 0; first < width; first += kTogether) {
    float w[kTogether], u[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      w[j] = weights[first + j];
      u[j] = cuda::to_float(inputs.at(channel, t - width + 1 + first + j));
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sum = fmaf(w[j], u[j], sum);
  }
  return sum;
}

__device__ __forceinline__ void store_gates(const State& state, const ConvGatesOp::Args& args, int64_t t, int head) {
  const float a = cuda::to_float(static_cast<const Bf16Bits*>(args.a.data)[t * args.a.stride + head]);
  const float b = cuda::to_float(static_cast<const Bf16Bits*>(args.b.data)[t * args.b.stride + head]);
  const float x = a + state.dt_bias[head];
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  static_cast<float*>(args.g.data)[t * args.g.stride + head] = -expf(state.a_log[head]) * softplus;
  static_cast<float*>(args.beta.data)[t * args.beta.stride + head] = cuda::sigmoid(b);
}

__global__ void __launch_bounds__(kThreads) conv_gates(State state, ConvGatesOp::Args args, uint32_t* flags) {
  cuda::begin_overlapped();
  __shared__ float scratch[kThreads / 32];
  const ConvGatesDesc& desc = state.desc;
  const BatchView& batch = args.batch;
  const int t = blockIdx.x, unit = blockIdx.y, keys = desc.key_heads, width = desc.width;
  const int total = batch.tokens.live == nullptr ? batch.tokens.total : batch.tokens.live[1];
  if (t >= total) return;
  const int sequence = batch.sequence_of[t], first = batch.query_start[sequence];
  const int32_t read = batch.state_read[sequence];
  const auto* slots = static_cast<const Bf16Bits*>(args.state.conv);
  const Inputs inputs{static_cast<const Bf16Bits*>(args.qkv.data), args.qkv.stride,
                      read < 0 ? nullptr : slots + read * args.state.conv_stride, first, width};
  const bool value_head = unit >= 2 * keys;
  const int dim = value_head ? desc.value_dim : desc.key_dim;
  const int64_t base =
      value_head ? int64_t{2} * keys * desc.key_dim + int64_t{unit - 2 * keys} * dim : int64_t{unit} * dim;
  float values[kMaxValues], squares = 0.0f;
#pragma unroll
  for (int n = 0; n < kMaxValues; ++n) {
    const int i = threadIdx.x + n * kThreads;
    values[n] = 0.0f;
    if (i >= dim) continue;
    const float* weights = state.conv + (base + i) * width;
    const float sum = width == kUsualWidth ? convolve<kUsualWidth>(weights, inputs, base + i, t, width)
                                           : convolve<1>(weights, inputs, base + i, t, width);
    values[n] = cuda::round_bf16(cuda::silu(sum));
    squares = fmaf(values[n], values[n], squares);
  }
  const int head = value_head ? unit - 2 * keys : unit % keys;
  const View& to = value_head ? args.v : unit < keys ? args.q : args.k;
  if (value_head) {
    if (threadIdx.x == 0) store_gates(state, args, t, head);
  } else {
    squares = cuda::block_sum<kThreads / 32>(squares, scratch);
  }
  const float norm = 1.0f / sqrtf(squares + 1e-6f) * (unit < keys ? 1.0f / sqrtf(static_cast<float>(dim)) : 1.0f);
#pragma unroll
  for (int n = 0; n < kMaxValues; ++n) {
    const int i = threadIdx.x + n * kThreads;
    if (i >= dim) continue;
    const int64_t at = t * to.stride + head * dim + i;
    if (value_head) {
      static_cast<Bf16Bits*>(to.data)[at] = cuda::to_bf16(values[n]);
    } else {
      static_cast<float*>(to.data)[at] = values[n] * norm;
    }
  }
  if (t + 1 != min(batch.query_start[sequence + 1], total)) return;
  bool finite = true;
  auto* after = static_cast<Bf16Bits*>(args.state.conv) + batch.state_write[sequence] * args.state.conv_stride;
  for (int i = threadIdx.x; i < dim * (width - 1); i += kThreads) {
    const int64_t channel = base + i / (width - 1);
    const Bf16Bits u = inputs.at(channel, t + 1 - (width - 1) + i % (width - 1));
    after[base * (width - 1) + i] = u;
    finite = finite && isfinite(cuda::to_float(u));
  }
  cuda::flag(flags, Sentinel::kNonFiniteState, !finite);
}

void enqueue(const State& state, const ConvGatesOp::Args& args, const Launch& launch) {
  const ConvGatesDesc& desc = state.desc;
  cuda::launch("conv_gates cuda_head", cuda::Start::kOverlap, conv_gates,
               dim3(args.batch.tokens.total, 2 * desc.key_heads + desc.value_heads), kThreads, 0, launch.stream, state,
               args, cuda_row::flag_word(launch));
}

Refusal can_run(const ConvGatesDesc& desc, const DeviceCaps& caps) {
  if (desc.activation != DType::kBf16) return "activations must be bf16";
  if (std::max(desc.key_dim, desc.value_dim) > kThreads * kMaxValues) return "head dims above 512";
  return refuse_conv_gates(desc, caps);
}

Result<PlanPtr<ConvGatesOp>> make(const ConvGatesDesc& desc, const Bucket&, const ConvGatesOp::Weights& weights,
                                  MakeContext& context) {
  State state{desc, nullptr, nullptr, nullptr};
  ASSAY_ASSIGN(state.conv, cuda_f32_matrix(context.weights, weights.conv, desc.channels(), desc.width));
  ASSAY_ASSIGN(state.a_log, cuda_f32_matrix(context.weights, weights.a_log, 1, desc.value_heads));
  ASSAY_ASSIGN(state.dt_bias, cuda_f32_matrix(context.weights, weights.dt_bias, 1, desc.value_heads));
  return cuda_row::make_plan<ConvGatesOp, State, enqueue>(state);
}

}  // namespace

const Impl<ConvGatesOp> kConvGatesCudaHead = {
    .name = "cuda_head",
    .backend = Backend::kCuda,
    .order = [](const ConvGatesDesc&) { return order_id("conv_gates 128 lanes, butterfly, 4 warps"); },
    .layout = cuda_row::no_layout<ConvGatesOp>,
    .can_run = can_run,
    .workspace_bytes = cuda_row::no_workspace<ConvGatesOp>,
    .make = make,
};

}  // namespace assay::ops
