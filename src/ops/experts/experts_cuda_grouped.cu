// experts, one block a tile (or four) of 16 weight rows and a group of pairs (token, expert) that share an expert: gate
// and up, down, then a sum per token in ascending order of expert id. No float atomics: every pair keeps its own
// partial output.
//
// Groups of 8 pairs (32 for many tokens) are made on the device; for one or two tokens every pair is its own group.
// Bytes: the weights of each active expert once a group. Bound: device memory (decode), decoding (prefill).
// H200, 8 of 256 experts 2048 x 512: 16.2 us for 1 token (21 % of the copy bandwidth), 187 us for 64 (51 %).
#include "backend/cuda/launch.h"
#include "ops/experts/experts_rows.h"
#include "ops/plan_cuda.h"
#include "ops/run.h"
#include "ops/tile_dot_cuda.cuh"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;
using numeric::WeightFormat;

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 32;
constexpr int kWaveTokens = 1024;  // tokens worked on together: bounds the workspace
constexpr int kGroupThreads = 1024;
constexpr int64_t kManyGroups = 64;  // from here on a block works on four tiles: finding its group costs as much as one
constexpr int kUpWarps = 4;
constexpr int kDownWarps = 1;  // a row of down is short

// Chunks in flight together a warp: of packed ones all of a short row.
constexpr int ahead_for(WeightFormat format) { return format == WeightFormat::kNvfp4 ? 4 : 1; }

struct State {
  ExpertsDesc desc;
  const std::byte* tiles = nullptr;  // kCudaExpertTileLayout
};

// Groups of pairs with one expert. `first` indexes `order`, which lists pairs; null order: group i is pair i.
struct Groups {
  int32_t* count = nullptr;
  int32_t* expert = nullptr;
  int32_t* first = nullptr;
  int32_t* size = nullptr;
  int32_t* order = nullptr;
};

struct Buffers {
  Groups groups;
  Bf16Bits* hidden = nullptr;  // [pairs, I]
  float* partial = nullptr;    // [pairs, hidden]
};

// The tokens [base, base + kWaveTokens) of the step.
struct Wave {
  ExpertsOp::Args args;
  int base = 0;
  int tokens = 0;  // at most
  int top_k = 0;
  __device__ __forceinline__ int live_pairs() const {
    const int total = args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1];
    return max(0, min(tokens, total - base)) * top_k;
  }
  __device__ __forceinline__ int expert(int pair) const {
    const auto* ids = static_cast<const int32_t*>(args.ids.data);
    return ids[(base + pair / top_k) * args.ids.stride + pair % top_k];
  }
};

struct Group {
  int expert = 0;
  int first = 0;
  int size = 0;
  __device__ __forceinline__ int pair(const Groups& groups, int column) const {
    return groups.order == nullptr ? first : groups.order[first + column];
  }
};

// False when there is no group `index`.
__device__ __forceinline__ bool find_group(const Groups& groups, const Wave& wave, int index, Group& group) {
  if (groups.order == nullptr) {
    if (index >= wave.live_pairs()) return false;
    group = {wave.expert(index), index, 1};
    return true;
  }
  if (index >= *groups.count) return false;
  group = {groups.expert[index], groups.first[index], groups.size[index]};
  return true;
}

// Inclusive sum over kMaxExperts values, one a thread.
__device__ int scan(int value, int* shared) {
  const int i = threadIdx.x;
  shared[i] = value;
  __syncthreads();
  for (int offset = 1; offset < kMaxExperts; offset *= 2) {
    const int left = i >= offset ? shared[i - offset] : 0;
    __syncthreads();
    shared[i] += left;
    __syncthreads();
  }
  const int sum = shared[i];
  __syncthreads();
  return sum;
}

// One block. Which column a pair gets may change from run to run; its numbers do not depend on it.
__global__ void __launch_bounds__(kGroupThreads, 1) experts_group(Wave wave, Groups groups, int group_size) {
  __shared__ int counts[kMaxExperts], cursors[kMaxExperts], sums[kMaxExperts];
  const int thread = threadIdx.x, pairs = wave.live_pairs();
  counts[thread] = 0;
  __syncthreads();
  for (int pair = thread; pair < pairs; pair += kGroupThreads) atomicAdd(&counts[wave.expert(pair)], 1);
  __syncthreads();
  const int count = counts[thread], mine = (count + group_size - 1) / group_size;
  const int start = scan(count, sums) - count;
  const int group_end = scan(mine, sums);
  cursors[thread] = start;
  for (int i = 0; i < mine; ++i) {
    const int group = group_end - mine + i;
    groups.expert[group] = thread;
    groups.first[group] = start + i * group_size;
    groups.size[group] = min(group_size, count - i * group_size);
  }
  if (thread == kMaxExperts - 1) *groups.count = group_end;
  __syncthreads();
  for (int pair = thread; pair < pairs; pair += kGroupThreads) {
    groups.order[atomicAdd(&cursors[wave.expert(pair)], 1)] = pair;
  }
}

template <WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kUpWarps * 32, kTokenTiles == 1 ? 4 : 1)
    experts_gate_up(State state, Wave wave, Buffers buffers) {
  constexpr int kWarps = kUpWarps, kColumns = 8 * kTokenTiles;
  __shared__ float sums[kWarps * kColumns * 17];
  Group group;
  if (!find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const ExpertsDesc& desc = state.desc;
  const int g = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
  const auto* x = static_cast<const Bf16Bits*>(wave.args.x.data);
  const Bf16Bits* rows[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int pair = group.pair(buffers.groups, min(n * 8 + g, group.size - 1));
    rows[n] = x + (wave.base + pair / wave.top_k) * wave.args.x.stride;
  }
  const ExpertTiles sizes(kFormat, desc.experts, desc.hidden, desc.intermediate);
  const std::byte* tiles = state.tiles + group.expert * (sizes.gate_up_bytes + sizes.down_bytes);
  const float* factors = reinterpret_cast<const float*>(state.tiles + sizes.factors) + group.expert * 3;
  for (int64_t tile = blockIdx.x; tile < desc.intermediate / 8; tile += gridDim.x) {
    float acc[kTokenTiles][4] = {};
    tile::accumulate<kFormat, kTokenTiles, ahead_for(kFormat)>(acc, tiles + tile * tile_bytes(kFormat, desc.hidden),
                                                               static_cast<int>(tile_chunks(desc.hidden)), warp, kWarps,
                                                               rows, desc.hidden);
    tile::add_warps<kWarps, kTokenTiles>(acc, sums);
    for (int i = threadIdx.x; i < kColumns * 8; i += kWarps * 32) {
      const int column = i / 8, row = i % 8;
      if (column >= group.size) continue;
      const float gate = sums[column * 17 + row] * factors[0], up = sums[column * 17 + row + 8] * factors[1];
      buffers.hidden[group.pair(buffers.groups, column) * desc.intermediate + tile * 8 + row] =
          cuda::to_bf16(cuda::silu(gate) * up);
    }
    __syncthreads();
  }
}

template <WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kDownWarps * 32, kTokenTiles == 1 ? 20 : 1)
    experts_down(State state, Wave wave, Buffers buffers) {
  constexpr int kColumns = 8 * kTokenTiles;
  __shared__ float sums[kDownWarps * kColumns * 17];
  Group group;
  if (!find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const ExpertsDesc& desc = state.desc;
  const int g = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
  const Bf16Bits* rows[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    rows[n] = buffers.hidden + group.pair(buffers.groups, min(n * 8 + g, group.size - 1)) * desc.intermediate;
  }
  const ExpertTiles sizes(kFormat, desc.experts, desc.hidden, desc.intermediate);
  const std::byte* tiles = state.tiles + group.expert * (sizes.gate_up_bytes + sizes.down_bytes) + sizes.gate_up_bytes;
  const float factor = reinterpret_cast<const float*>(state.tiles + sizes.factors)[group.expert * 3 + 2];
  for (int64_t tile = blockIdx.x; tile < desc.hidden / kTileRows; tile += gridDim.x) {
    float acc[kTokenTiles][4] = {};
    tile::accumulate<kFormat, kTokenTiles, ahead_for(kFormat)>(
        acc, tiles + tile * tile_bytes(kFormat, desc.intermediate), static_cast<int>(tile_chunks(desc.intermediate)),
        warp, kDownWarps, rows, desc.intermediate);
    tile::add_warps<kDownWarps, kTokenTiles>(acc, sums);
    for (int i = threadIdx.x; i < kColumns * 16; i += kDownWarps * 32) {
      const int column = i / 16, row = i % 16;
      if (column >= group.size) continue;
      buffers.partial[group.pair(buffers.groups, column) * desc.hidden + tile * kTileRows + row] =
          sums[column * 17 + row] * factor;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(256) experts_combine(ExpertsDesc desc, Wave wave, const float* partial) {
  __shared__ int slots[kMaxTopK];
  const int token = blockIdx.y;
  if (token * wave.top_k >= wave.live_pairs()) return;
  const int64_t t = wave.base + token;
  if (threadIdx.x < wave.top_k) {
    const int mine = wave.expert(token * wave.top_k + threadIdx.x);
    int rank = 0;
    for (int i = 0; i < wave.top_k; ++i) {
      const int other = wave.expert(token * wave.top_k + i);
      rank += other < mine || (other == mine && i < static_cast<int>(threadIdx.x));
    }
    slots[rank] = threadIdx.x;
  }
  __syncthreads();
  const ExpertsOp::Args& args = wave.args;
  const int64_t column = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (column >= desc.hidden) return;
  const auto* weights = static_cast<const float*>(args.weights.data) + t * args.weights.stride;
  float sum = 0.0f;
  for (int i = 0; i < wave.top_k; ++i) {
    sum += weights[slots[i]] * partial[(int64_t{token} * wave.top_k + slots[i]) * desc.hidden + column];
  }
  const auto value = [&](const ConstView& view) {
    return cuda::to_float(static_cast<const Bf16Bits*>(view.data)[t * view.stride + column]);
  };
  if (args.shared.data != nullptr) {
    sum += static_cast<const float*>(args.shared_scale.data)[t * args.shared_scale.stride] * value(args.shared);
  }
  if (args.residual.data != nullptr) sum = value(args.residual) + cuda::round_bf16(sum);
  static_cast<Bf16Bits*>(args.y.data)[t * args.y.stride + column] = cuda::to_bf16(sum);
}

__global__ void experts_widen(const Bf16Bits* from, float* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = cuda::to_float(from[i]);
}

Buffers place(Workspace& workspace, const ExpertsDesc& desc, int64_t tokens) {
  const int64_t pairs = std::min<int64_t>(tokens, kWaveTokens) * desc.top_k;
  const auto integers = [&](int64_t count) {
    return static_cast<int32_t*>(workspace.take(DType::kI32, 1, count).data);
  };
  Buffers buffers;
  buffers.groups = {integers(1), integers(pairs), integers(pairs), integers(pairs), integers(pairs)};
  buffers.hidden = static_cast<Bf16Bits*>(workspace.take(DType::kBf16, pairs, desc.intermediate).data);
  buffers.partial =
      static_cast<float*>(workspace.take(DType::kF32, pairs, std::max(desc.hidden, desc.intermediate)).data);
  return buffers;
}

template <WeightFormat kFormat, int kTokenTiles>
void run_wave(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  const ExpertsDesc& desc = state.desc;
  const int64_t pairs = int64_t{wave.tokens} * desc.top_k;
  const int64_t groups =
      buffers.groups.order == nullptr ? pairs : std::min<int64_t>(pairs, desc.experts + pairs / (8 * kTokenTiles));
  const int64_t per_block = groups >= kManyGroups ? 4 : 1;
  if (buffers.groups.order != nullptr) {
    cuda::launch("experts cuda_grouped group", experts_group, 1, kGroupThreads, 0, launch.stream, wave, buffers.groups,
                 8 * kTokenTiles);
  }
  cuda::launch("experts cuda_grouped gate_up", experts_gate_up<kFormat, kTokenTiles>,
               dim3(cuda::blocks_for(desc.intermediate / 8, per_block), groups), kUpWarps * 32, 0, launch.stream, state,
               wave, buffers);
  if (launch.taps != nullptr) {
    const View hidden(buffers.partial, DType::kF32, pairs, desc.intermediate);
    cuda::launch("experts cuda_grouped widen", experts_widen, cuda::blocks_for(pairs * desc.intermediate, 256), 256, 0,
                 launch.stream, buffers.hidden, buffers.partial, pairs * desc.intermediate);
    tap(launch, "experts.hidden", hidden);
  }
  cuda::launch("experts cuda_grouped down", experts_down<kFormat, kTokenTiles>,
               dim3(cuda::blocks_for(desc.hidden / kTileRows, per_block), groups), kDownWarps * 32, 0, launch.stream,
               state, wave, buffers);
  cuda::launch("experts cuda_grouped combine", experts_combine, dim3(cuda::blocks_for(desc.hidden, 256), wave.tokens),
               256, 0, launch.stream, desc, wave, static_cast<const float*>(buffers.partial));
}

void enqueue(const State& state, const ExpertsOp::Args& args, const Launch& launch) {
  CHECK(reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0, "rows of x must be aligned");
  Workspace workspace(launch.workspace);
  Buffers buffers = place(workspace, state.desc, args.tokens.total);
  if (args.tokens.total <= 2) buffers.groups.order = nullptr;
  const bool packed = state.desc.format == WeightFormat::kNvfp4, many = args.tokens.total > 64;
  for (int base = 0; base < args.tokens.total; base += kWaveTokens) {
    const Wave wave{args, base, std::min(kWaveTokens, args.tokens.total - base), state.desc.top_k};
    if (packed && many) run_wave<WeightFormat::kNvfp4, 4>(state, wave, buffers, launch);
    if (packed && !many) run_wave<WeightFormat::kNvfp4, 1>(state, wave, buffers, launch);
    if (!packed && many) run_wave<WeightFormat::kBf16, 4>(state, wave, buffers, launch);
    if (!packed && !many) run_wave<WeightFormat::kBf16, 1>(state, wave, buffers, launch);
  }
}

Refusal can_run(const ExpertsDesc& desc, const DeviceCaps&) {
  if (!tile_format(desc.format)) return "weights must be bf16 or nvfp4";
  if (desc.activation != DType::kBf16) return "activations must be bf16";
  if (desc.hidden % kTileRows != 0 || desc.intermediate % 8 != 0) return "hidden must divide by 16, intermediate by 8";
  if (desc.experts > kMaxExperts || desc.top_k > kMaxTopK) return "more than 1024 experts or top_k above 32";
  return refuse_weight_only(desc);
}

size_t workspace_bytes(const ExpertsDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, bucket.tokens);
  return counted.used();
}

Result<PlanPtr<ExpertsOp>> make(const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
                                MakeContext& context) {
  ASSAY_TRY(checked_experts(context.weights, weights.experts, desc));
  ASSAY_ASSIGN(const PackedWeight* packed, context.weights.get(weights.experts, &kCudaExpertTileLayout));
  return cuda_row::make_plan<ExpertsOp, State, enqueue>({desc, packed->data});
}

}  // namespace

const Impl<ExpertsOp> kExpertsCudaGrouped = {
    .name = "cuda_grouped",
    .backend = Backend::kCuda,
    .order = [](const ExpertsDesc&) { return order_id("experts tile16 mma, 4 warps and 1"); },
    .layout = [](const ExpertsDesc&) { return &kCudaExpertTileLayout; },
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
