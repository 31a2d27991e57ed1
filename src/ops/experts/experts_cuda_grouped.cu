// experts on the tensor cores: the pairs (token, expert) are grouped by expert on the device; then gate and up, down,
// and a sum per token in ascending order of expert id. No float atomics: every pair keeps its own partial output.
//
// Up to 64 tokens: groups of 8 pairs, and a warp a tile of 16 weight rows, with the next weights under way while it
// multiplies; for one or two tokens every pair is its own group, a block shares a tile of gate and up, and the block of
// a tile of down sums up its token. More tokens: groups of 32 pairs, a block a tile of gate and up. All give the same
// bits. Bytes: the weights of each active expert once a group. Bound: device memory (decode), decoding (prefill). H200,
// 8 of 256 experts 2048 x 512: 15.1 us for 1 token (23 % of the copy bandwidth), 129 us for 64 (74 %).
#include "backend/cuda/arch.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
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
constexpr int kUpWarps = 4;
constexpr int kDownWarps = 1;   // a row of down is short
constexpr int kBlockWarps = 4;  // where a warp has a tile for itself
constexpr int kDownTiles = 4;   // of such a warp
constexpr int kJoinedTopK = 16;

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

// Inclusive sum over kGroupThreads values, one a thread. `shared`: one int a warp.
__device__ int scan(int value, int* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto over_warp = [lane](int sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int left = __shfl_up_sync(cuda::kFullWarp, sum, offset);
      if (lane >= offset) sum += left;
    }
    return sum;
  };
  const int sum = over_warp(value);
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  const int warps = over_warp(shared[lane]);
  const int before = __shfl_sync(cuda::kFullWarp, warps, max(warp - 1, 0));
  __syncthreads();
  return warp == 0 ? sum : before + sum;
}

// One block. Which column a pair gets may change from run to run; its numbers do not depend on it.
__global__ void __launch_bounds__(kGroupThreads, 1) experts_group(Wave wave, Groups groups, int group_size) {
  cuda::begin_overlapped();
  __shared__ int counts[kMaxExperts], cursors[kMaxExperts], sums[kGroupThreads / 32];
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

// The weights of one expert.
template <WeightFormat kFormat>
struct Expert {
  const std::byte* gate_up;
  const std::byte* down;
  const float* factors;  // of gate, up and down
  __device__ __forceinline__ Expert(const State& state, int expert) {
    const ExpertTiles sizes(kFormat, state.desc.experts, state.desc.hidden, state.desc.intermediate);
    gate_up = state.tiles + expert * (sizes.gate_up_bytes + sizes.down_bytes);
    down = gate_up + sizes.gate_up_bytes;
    factors = reinterpret_cast<const float*>(state.tiles + sizes.factors) + expert * 3;
  }
};

// The rows of x of a group's pairs, for this lane's column of each token tile.
template <int kTokenTiles>
__device__ __forceinline__ void inputs_of(const Bf16Bits* (&rows)[kTokenTiles], const Wave& wave, const Groups& groups,
                                          const Group& group) {
  const auto* x = static_cast<const Bf16Bits*>(wave.args.x.data);
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int pair = group.pair(groups, min(n * 8 + static_cast<int>(threadIdx.x) % 32 / 4, group.size - 1));
    rows[n] = x + (wave.base + pair / wave.top_k) * wave.args.x.stride;
  }
}
template <int kTokenTiles>
__device__ __forceinline__ void hidden_of(const Bf16Bits* (&rows)[kTokenTiles], const ExpertsDesc& desc,
                                          const Buffers& buffers, const Group& group) {
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int pair = group.pair(buffers.groups, min(n * 8 + static_cast<int>(threadIdx.x) % 32 / 4, group.size - 1));
    rows[n] = buffers.hidden + pair * desc.intermediate;
  }
}

__device__ __forceinline__ Bf16Bits hidden_value(float gate, float up, const float* factors) {
  return cuda::to_bf16(cuda::silu(gate * factors[0]) * (up * factors[1]));
}

// Gate and up by a block a tile: for very few pairs, so that all warps have work, and for many tokens.
template <WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kUpWarps * 32, kTokenTiles == 1 ? 4 : 1)
    experts_gate_up(State state, Wave wave, Buffers buffers) {
  cuda::begin_overlapped();
  constexpr int kColumns = 8 * kTokenTiles;
  __shared__ float sums[kUpWarps * kColumns * 17];
  Group group;
  if (!find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const ExpertsDesc& desc = state.desc;
  const Bf16Bits* rows[kTokenTiles];
  inputs_of(rows, wave, buffers.groups, group);
  const Expert<kFormat> expert(state, group.expert);
  if (kTokenTiles == 1 && threadIdx.x == 0) {  // this block's share of what experts_down reads
    const int64_t share = (desc.hidden / kTileRows + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
    const int64_t count = min(share, desc.hidden / kTileRows - first), bytes = tile_bytes(kFormat, desc.intermediate);
    if (count > 0) cuda::prefetch_to_l2(expert.down + first * bytes, static_cast<uint32_t>(count * bytes));
  }
  const tile::Inputs<kTokenTiles> x(rows, static_cast<int>(desc.hidden));
  const int warp = threadIdx.x / 32, chunks = static_cast<int>(tile_chunks(desc.hidden));
  for (int64_t tile = blockIdx.x; tile < desc.intermediate / 8; tile += gridDim.x) {
    float acc[kTokenTiles][4] = {};
    const std::byte* weights = expert.gate_up + tile * tile_bytes(kFormat, desc.hidden);
    tile::ChunkGroup<kFormat, ahead_for(kFormat)> chunk_group;
    chunk_group.load(weights, chunks, warp, kUpWarps);
    tile::accumulate(acc, chunk_group, weights, chunks, warp, kUpWarps, x);
    tile::add_warps<kUpWarps, kTokenTiles>(acc, sums);
    for (int i = threadIdx.x; i < kColumns * 8; i += kUpWarps * 32) {
      const int column = i / 8, row = i % 8;
      if (column >= group.size) continue;
      buffers.hidden[group.pair(buffers.groups, column) * desc.intermediate + tile * 8 + row] =
          hidden_value(sums[column * 17 + row], sums[column * 17 + row + 8], expert.factors);
    }
    __syncthreads();
  }
}

// Gate and up by a warp a tile: the same bits.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kBlockWarps * 32, kFormat == WeightFormat::kNvfp4 && !cuda::kSm120 ? 7 : 4)
    experts_gate_up_alone(State state, Wave wave, Buffers buffers) {
  cuda::begin_overlapped();
  Group group;
  const int64_t tile = int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / 32;
  const ExpertsDesc& desc = state.desc;
  if (tile >= desc.intermediate / 8 || !find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const Bf16Bits* rows[1];
  inputs_of(rows, wave, buffers.groups, group);
  const Expert<kFormat> expert(state, group.expert);
  float sum[4];
  tile::accumulate_alone<kFormat, kUpWarps, 1>(sum, expert.gate_up + tile * tile_bytes(kFormat, desc.hidden),
                                               static_cast<int>(tile_chunks(desc.hidden)),
                                               tile::Inputs<1>(rows, static_cast<int>(desc.hidden)));
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = 2 * t + i;
    if (column >= group.size) continue;
    buffers.hidden[group.pair(buffers.groups, column) * desc.intermediate + tile * 8 + g] =
        hidden_value(sum[i], sum[2 + i], expert.factors);
  }
}

// Down by a warp a tile, kDownTiles tiles one after the other, the next one's weights under way.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kBlockWarps * 32, 4) experts_down_alone(State state, Wave wave, Buffers buffers) {
  cuda::begin_overlapped();
  Group group;
  if (!find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const ExpertsDesc& desc = state.desc;
  const Bf16Bits* rows[1];
  hidden_of(rows, desc, buffers, group);
  const Expert<kFormat> expert(state, group.expert);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int chunks = static_cast<int>(tile_chunks(desc.intermediate));
  const auto tiles = static_cast<int>(desc.hidden / kTileRows), step = static_cast<int>(gridDim.x) * kBlockWarps;
  const int64_t bytes = tile_bytes(kFormat, desc.intermediate);
  int tile = static_cast<int>(blockIdx.x) * kBlockWarps + static_cast<int>(threadIdx.x) / 32;
  if (tile >= tiles) return;
  constexpr int kAhead = ahead_for(kFormat);
  tile::ChunkGroup<kFormat, kAhead> now, next;
  const tile::Inputs<1> x(rows, static_cast<int>(desc.intermediate));
  now.load(expert.down + tile * bytes, chunks, 0, 1);
#pragma unroll 2
  for (; tile < tiles; tile += step) {
    float acc[1][4] = {};
    for (int base = 0; base < chunks; base += kAhead) {
      const bool last = base + kAhead >= chunks;
      next.load(expert.down + (last ? tile + step : tile) * bytes, last && tile + step >= tiles ? 0 : chunks,
                last ? 0 : base + kAhead, 1);
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (base + c < chunks) {
          tile::multiply_chunk<kFormat, 1>(acc, now.raw[c], base + c, x);
        }
      }
      now = next;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 2 * t + i % 2, row = g + i / 2 * 8;
      if (column >= group.size) continue;
      buffers.partial[group.pair(buffers.groups, column) * desc.hidden + tile * kTileRows + row] =
          acc[0][i] * expert.factors[2];
    }
  }
}

// Down for many tokens: a warp a tile.
template <WeightFormat kFormat, int kTokenTiles>
__global__ void __launch_bounds__(kDownWarps * 32, 1) experts_down(State state, Wave wave, Buffers buffers) {
  cuda::begin_overlapped();
  constexpr int kColumns = 8 * kTokenTiles;
  __shared__ float sums[kDownWarps * kColumns * 17];
  Group group;
  if (!find_group(buffers.groups, wave, blockIdx.y, group)) return;
  const ExpertsDesc& desc = state.desc;
  const Bf16Bits* rows[kTokenTiles];
  hidden_of(rows, desc, buffers, group);
  const Expert<kFormat> expert(state, group.expert);
  const tile::Inputs<kTokenTiles> x(rows, static_cast<int>(desc.intermediate));
  const int warp = threadIdx.x / 32, chunks = static_cast<int>(tile_chunks(desc.intermediate));
  for (int64_t tile = blockIdx.x; tile < desc.hidden / kTileRows; tile += gridDim.x) {
    float acc[kTokenTiles][4] = {};
    const std::byte* weights = expert.down + tile * tile_bytes(kFormat, desc.intermediate);
    tile::ChunkGroup<kFormat, ahead_for(kFormat)> chunk_group;
    chunk_group.load(weights, chunks, warp, kDownWarps);
    tile::accumulate(acc, chunk_group, weights, chunks, warp, kDownWarps, x);
    tile::add_warps<kDownWarps, kTokenTiles>(acc, sums);
    for (int i = threadIdx.x; i < kColumns * 16; i += kDownWarps * 32) {
      const int column = i / 16, row = i % 16;
      if (column >= group.size) continue;
      buffers.partial[group.pair(buffers.groups, column) * desc.hidden + tile * kTileRows + row] =
          sums[column * 17 + row] * expert.factors[2];
    }
    __syncthreads();
  }
}

// The token's choices in ascending order of expert id: `slots` [top_k], by the first top_k threads of a block.
__device__ __forceinline__ void order_choices(const Wave& wave, int token, int* slots) {
  if (static_cast<int>(threadIdx.x) >= wave.top_k) return;
  const int mine = wave.expert(token * wave.top_k + threadIdx.x);
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < wave.top_k; ++i) {
    const int other = wave.expert(token * wave.top_k + i);
    rank += other < mine || (other == mine && i < static_cast<int>(threadIdx.x));
  }
  slots[rank] = threadIdx.x;
}

// sum_i weights_i * value(i) over the choices in order; then the shared expert, the residual and the rounding.
template <class Value>
__device__ __forceinline__ void finish(const Wave& wave, int token, int64_t column, const int* slots,
                                       const Value& value) {
  const ExpertsOp::Args& args = wave.args;
  const int64_t t = wave.base + token;
  const auto* weights = static_cast<const float*>(args.weights.data) + t * args.weights.stride;
  constexpr int kTogether = 8;  // loads under way at once
  float sum = 0.0f;
  for (int first = 0; first < wave.top_k; first += kTogether) {
    float values[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) values[i] = first + i < wave.top_k ? value(slots[first + i]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < wave.top_k) sum += weights[slots[first + i]] * values[i];
    }
  }
  const auto element = [&](const ConstView& view) {
    return cuda::to_float(static_cast<const Bf16Bits*>(view.data)[t * view.stride + column]);
  };
  if (args.shared.data != nullptr) {
    sum += static_cast<const float*>(args.shared_scale.data)[t * args.shared_scale.stride] * element(args.shared);
  }
  if (args.residual.data != nullptr) sum = element(args.residual) + cuda::round_bf16(sum);
  static_cast<Bf16Bits*>(args.y.data)[t * args.y.stride + column] = cuda::to_bf16(sum);
}

// Down for one or two tokens and the sum at once: a block a token and tile, a warp a choice.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kJoinedTopK * 32, 1) experts_down_joined(State state, Wave wave, Buffers buffers) {
  cuda::begin_overlapped();
  __shared__ int slots[kJoinedTopK];
  __shared__ float values[kJoinedTopK][kTileRows];
  const int token = blockIdx.y, slot = threadIdx.x / 32, lane = threadIdx.x % 32, pair = token * wave.top_k + slot;
  if (pair >= wave.live_pairs()) return;
  const ExpertsDesc& desc = state.desc;
  const Expert<kFormat> expert(state, wave.expert(pair));
  const std::byte* weights = expert.down + blockIdx.x * tile_bytes(kFormat, desc.intermediate);
  const int chunks = static_cast<int>(tile_chunks(desc.intermediate));
  tile::ChunkGroup<kFormat, ahead_for(kFormat)> group;
  group.load(weights, chunks, 0, 1);
  order_choices(wave, token, slots);
  const Bf16Bits* rows[1] = {buffers.hidden + pair * desc.intermediate};
  float acc[1][4] = {};
  tile::accumulate(acc, group, weights, chunks, 0, 1, tile::Inputs<1>(rows, static_cast<int>(desc.intermediate)));
  if (lane % 4 == 0) {  // column 0: all columns are this pair
    values[slot][lane / 4] = acc[0][0] * expert.factors[2];
    values[slot][lane / 4 + 8] = acc[0][2] * expert.factors[2];
  }
  __syncthreads();
  const int row = threadIdx.x;
  if (row < kTileRows) {
    finish(wave, token, int64_t{blockIdx.x} * kTileRows + row, slots, [&](int i) { return values[i][row]; });
  }
}

__global__ void __launch_bounds__(256) experts_combine(ExpertsDesc desc, Wave wave, const float* partial) {
  cuda::begin_overlapped();
  __shared__ int slots[kMaxTopK];
  const int token = blockIdx.y;
  if (token * wave.top_k >= wave.live_pairs()) return;
  order_choices(wave, token, slots);
  __syncthreads();
  const int64_t column = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (column >= desc.hidden) return;
  const float* pairs = partial + int64_t{token} * wave.top_k * desc.hidden + column;
  finish(wave, token, column, slots, [&](int i) { return pairs[i * desc.hidden]; });
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

void show_hidden(const ExpertsDesc& desc, int64_t pairs, const Buffers& buffers, const Launch& launch) {
  if (launch.taps == nullptr) return;
  const View hidden(buffers.partial, DType::kF32, pairs, desc.intermediate);
  cuda::launch("experts cuda_grouped widen", experts_widen, cuda::blocks_for(pairs * desc.intermediate, 256), 256, 0,
               launch.stream, buffers.hidden, buffers.partial, pairs * desc.intermediate);
  tap(launch, "experts.hidden", hidden);
}

void combine(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  cuda::launch("experts cuda_grouped combine", cuda::Start::kOverlap, experts_combine,
               dim3(cuda::blocks_for(state.desc.hidden, 256), wave.tokens), 256, 0, launch.stream, state.desc, wave,
               static_cast<const float*>(buffers.partial));
}

// One or two tokens: every pair is its own group.
template <WeightFormat kFormat>
void run_pairs(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  const ExpertsDesc& desc = state.desc;
  const auto pairs = static_cast<unsigned>(wave.tokens * desc.top_k);
  const auto up_tiles = static_cast<unsigned>(desc.intermediate / 8);
  const auto down_tiles = static_cast<unsigned>(desc.hidden / kTileRows);
  cuda::launch("experts cuda_grouped gate_up", cuda::Start::kOverlap, experts_gate_up<kFormat, 1>,
               dim3(up_tiles, pairs), kUpWarps * 32, 0, launch.stream, state, wave, buffers);
  show_hidden(desc, pairs, buffers, launch);
  cuda::launch("experts cuda_grouped down", cuda::Start::kOverlap, experts_down_joined<kFormat>,
               dim3(down_tiles, wave.tokens), desc.top_k * 32, 0, launch.stream, state, wave, buffers);
}

// Up to 64 tokens: groups of 8 pairs.
template <WeightFormat kFormat>
void run_few(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  const ExpertsDesc& desc = state.desc;
  const int64_t pairs = int64_t{wave.tokens} * desc.top_k;
  const auto groups = static_cast<unsigned>(std::min<int64_t>(pairs, desc.experts + pairs / 8));
  cuda::launch("experts cuda_grouped group", cuda::Start::kOverlap, experts_group, 1, kGroupThreads, 0, launch.stream,
               wave, buffers.groups, 8);
  cuda::launch("experts cuda_grouped gate_up", cuda::Start::kOverlap, experts_gate_up_alone<kFormat>,
               dim3(cuda::blocks_for(desc.intermediate / 8, kBlockWarps), groups), kBlockWarps * 32, 0, launch.stream,
               state, wave, buffers);
  show_hidden(desc, pairs, buffers, launch);
  cuda::launch("experts cuda_grouped down", cuda::Start::kOverlap, experts_down_alone<kFormat>,
               dim3(cuda::blocks_for(desc.hidden / kTileRows, kBlockWarps * kDownTiles), groups), kBlockWarps * 32, 0,
               launch.stream, state, wave, buffers);
  combine(state, wave, buffers, launch);
}

// More tokens: groups of 32 pairs.
template <WeightFormat kFormat>
void run_many(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  constexpr int kTokenTiles = 4, kTilesOfBlock = 4;  // finding its group costs a block as much as one tile
  const ExpertsDesc& desc = state.desc;
  const int64_t pairs = int64_t{wave.tokens} * desc.top_k;
  const auto groups = static_cast<unsigned>(std::min<int64_t>(pairs, desc.experts + pairs / (8 * kTokenTiles)));
  cuda::launch("experts cuda_grouped group", cuda::Start::kOverlap, experts_group, 1, kGroupThreads, 0, launch.stream,
               wave, buffers.groups, 8 * kTokenTiles);
  cuda::launch("experts cuda_grouped gate_up", cuda::Start::kOverlap, experts_gate_up<kFormat, kTokenTiles>,
               dim3(cuda::blocks_for(desc.intermediate / 8, kTilesOfBlock), groups), kUpWarps * 32, 0, launch.stream,
               state, wave, buffers);
  show_hidden(desc, pairs, buffers, launch);
  cuda::launch("experts cuda_grouped down", cuda::Start::kOverlap, experts_down<kFormat, kTokenTiles>,
               dim3(cuda::blocks_for(desc.hidden / kTileRows, kTilesOfBlock), groups), kDownWarps * 32, 0,
               launch.stream, state, wave, buffers);
  combine(state, wave, buffers, launch);
}

template <WeightFormat kFormat>
void run_wave(const State& state, const Wave& wave, const Buffers& buffers, const Launch& launch) {
  if (buffers.groups.order == nullptr) {
    run_pairs<kFormat>(state, wave, buffers, launch);
  } else if (wave.args.tokens.total <= 64) {
    run_few<kFormat>(state, wave, buffers, launch);
  } else {
    run_many<kFormat>(state, wave, buffers, launch);
  }
}

void enqueue(const State& state, const ExpertsOp::Args& args, const Launch& launch) {
  CHECK(reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0, "rows of x must be aligned");
  Workspace workspace(launch.workspace);
  Buffers buffers = place(workspace, state.desc, args.tokens.total);
  if (args.tokens.total <= 2 && state.desc.top_k <= kJoinedTopK) buffers.groups.order = nullptr;
  for (int base = 0; base < args.tokens.total; base += kWaveTokens) {
    const Wave wave{args, base, std::min(kWaveTokens, args.tokens.total - base), state.desc.top_k};
    if (state.desc.format == WeightFormat::kNvfp4) {
      run_wave<WeightFormat::kNvfp4>(state, wave, buffers, launch);
    } else {
      run_wave<WeightFormat::kBf16>(state, wave, buffers, launch);
    }
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
