// attention with the keys of a token cut into at most 64 splits: one block of 4 warps a token, split and up to 8 of the
// query heads that share a key head: they are rows of mma.sync. Keys and values come by cp.async in tiles of 32; a warp
// scores 8 keys of a tile and adds up 64 dims of its values. A second kernel joins the splits in order.
//
// Weights meet the values as a sum of two bf16: the error is 2^-17 of a weight. Split length: 128 * ceil((position + 1)
// / 8192), a function of the position alone, so decode, verify and prefill tokens get the same bits. Bytes: K and V
// once a token and key head. Bound: device memory (decode); prefill rereads keys from L2.
// H200, 16/2 heads, 4096 keys: 13.1 us for 1 token, 149 us for 64 (88 % of the copy bandwidth).
#include "backend/cuda/arch.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/overlap.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/attention/attention_rows.h"
#include "ops/plan_cuda.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kDim = 256;
constexpr int kUnits = kDim / 8;  // of 16 bytes
constexpr int kWarps = 4;
constexpr int kWarpDims = kDim / kWarps;
constexpr int kHeads = 8;  // query heads of a block: rows 0 to 7 of the tensor cores' 16
constexpr int kTileKeys = 32;
constexpr int kStages = 2;
constexpr int kMaxSplits = 64;
constexpr int kSplitStep = 128;  // keys
constexpr int kWaveTokens = 64;  // tokens whose splits are in the workspace together
constexpr float kNone = -INFINITY;

__host__ __device__ constexpr int split_length(int keys) {
  return kSplitStep * ((keys + kMaxSplits * kSplitStep - 1) / (kMaxSplits * kSplitStep));
}

struct Partials {
  float* out = nullptr;      // [token][head][split][kDim], not divided by the sum
  float* largest = nullptr;  // [token][head][split]
  float* sum = nullptr;
};

struct Wave {
  AttentionDesc desc;
  AttentionOp::Args args;
  Partials partials;
  int base = 0;  // first token
  bool aligned = false;

  __device__ __forceinline__ bool live(int64_t token) const {
    const TokenCounts& tokens = args.batch.tokens;
    return token < (tokens.live == nullptr ? tokens.total : tokens.live[1]);
  }
  __device__ __forceinline__ int64_t slot(int64_t token, int head, int split) const {
    return ((token - base) * desc.heads + head) * kMaxSplits + split;
  }
};

// Shared memory of a block. Unit u (16 bytes) of key r lies at u ^ 4 (r & 1) in `keys`, of value r at u ^ (r & 7):
// neither the reads of scores_of() nor those of add_values() then meet a bank twice.
struct Stage {
  uint4 keys[kTileKeys][kUnits];
  uint4 values[kTileKeys][kUnits];
};
struct Shared {
  Stage stages[kStages];
  uint2 weights[kHeads][kTileKeys / 2 + 1];  // of two keys: as bf16, and what that rounding left, as bf16
  float largest[kWarps][kHeads];
  float sums[kWarps][kHeads];
};
static_assert(sizeof(Shared) <= 101376);

// A block's work: the keys [begin, end) and up to kHeads query heads of one token.
struct Task {
  int64_t token;
  int split, begin, end;
  int kv_head, first_head, heads;
};

// Starts copying the keys and values of positions key, key + 1, ...; past the end the last one again.
__device__ __forceinline__ void load_stage(Stage& stage, const Wave& wave, const Task& task, int key) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BatchView& batch = wave.args.batch;
  const KvCacheView& cache = wave.args.cache;
  const int position = min(key + lane, task.end - 1);
  const int32_t page =
      batch.page_table[int64_t{batch.sequence_of[task.token]} * batch.page_table_stride + position / cache.page_tokens];
  const int64_t mine =
      page * cache.page_stride + (int64_t{task.kv_head} * cache.page_tokens + position % cache.page_tokens) * kDim;
#pragma unroll
  for (int i = 0; i < kTileKeys / kWarps; ++i) {
    const int row = warp + i * kWarps;
    const int64_t from = __shfl_sync(cuda::kFullWarp, mine, row) + lane * 8;
    cuda::copy_async16(cuda::shared_address(&stage.keys[row][lane ^ (row & 1) << 2]),
                       static_cast<const Bf16Bits*>(cache.k) + from, true);
    cuda::copy_async16(cuda::shared_address(&stage.values[row][lane ^ (row & 7)]),
                       static_cast<const Bf16Bits*>(cache.v) + from, true);
  }
}

// Scores of the warp's 8 keys: head g, keys 2t and 2t + 1.
__device__ __forceinline__ void scores_of(float (&scores)[4], const Stage& stage, const uint4 (&query)[kDim / 32]) {
  const int lane = threadIdx.x % 32, t = lane % 4, row = threadIdx.x / 32 * 8 + lane / 4;
  float odd[4] = {};
#pragma unroll
  for (int c = 0; c < kDim / 32; ++c) {
    const uint4 key = stage.keys[row][(4 * c + t) ^ (row & 1) << 2];
    cuda::mma_bf16(scores, query[c].x, 0, query[c].y, 0, key.x, key.y);
    cuda::mma_bf16(odd, query[c].z, 0, query[c].w, 0, key.z, key.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) scores[i] += odd[i];
}

// The largest over the lanes of a head.
__device__ __forceinline__ float head_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(cuda::kFullWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(cuda::kFullWarp, value, 2));
}
__device__ __forceinline__ float over_warps_max(const float (&largest)[kWarps][kHeads], int head) {
  return fmaxf(fmaxf(largest[0][head], largest[1][head]), fmaxf(largest[2][head], largest[3][head]));
}

// out += weights x values for the warp's kWarpDims dims. Rows 0 to 7 of the tensor cores' 16 are the heads with the
// weights' bf16 parts, rows 8 to 15 the same heads with what the rounding left.
__device__ __forceinline__ void add_values(float (&out)[kWarpDims / 8][4], const Shared& shared, const Stage& stage) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < kTileKeys; k += 16) {
    const uint2 near = shared.weights[g][k / 2 + t], far = shared.weights[g][k / 2 + 4 + t];
    const int row = k + lane % 16;
#pragma unroll
    for (int n = 0; n < kWarpDims / 8; n += 2) {
      const int unit = warp * (kWarpDims / 8) + n + lane / 16;
      uint32_t v[4];
      cuda::load_matrices_transposed(v, cuda::shared_address(&stage.values[row][unit ^ (row & 7)]));
      cuda::mma_bf16(out[n], near.x, near.y, far.x, far.y, v[0], v[1]);
      cuda::mma_bf16(out[n + 1], near.x, near.y, far.x, far.y, v[2], v[3]);
    }
  }
}

__device__ __forceinline__ bool find_task(Task& task, const Wave& wave) {
  const AttentionOp::Args& args = wave.args;
  task.token = wave.base + blockIdx.z;
  if (!wave.live(task.token)) return false;
  const int keys = args.batch.positions[task.token] + 1, length = split_length(keys);
  task.split = static_cast<int>(blockIdx.x);
  task.begin = task.split * length;
  task.end = min(keys, task.begin + length);
  const int shared_by = wave.desc.heads / wave.desc.kv_heads, parts = (shared_by + kHeads - 1) / kHeads;
  const int first = static_cast<int>(blockIdx.y) % parts * kHeads;
  task.kv_head = static_cast<int>(blockIdx.y) / parts;
  task.first_head = task.kv_head * shared_by + first;
  task.heads = min(kHeads, shared_by - first);
  return task.begin < keys;
}

__global__ void __launch_bounds__(kWarps * 32, cuda::kSm120 ? 1 : 3) attention_split(Wave wave) {
  cuda::begin_overlapped();
  extern __shared__ __align__(128) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Task task;
  if (!find_task(task, wave)) return;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (task.begin + i * kTileKeys < task.end) load_stage(shared.stages[i], wave, task, task.begin + i * kTileKeys);
    cuda::commit_copies();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  uint4 query[kDim / 32] = {};
  if (g < task.heads) {
    const auto* q = static_cast<const Bf16Bits*>(wave.args.q.data) + task.token * wave.args.q.stride;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      query[c] = cuda::load8(q + (task.first_head + g) * kDim + 32 * c + 8 * t, wave.aligned);
    }
  }
  float out[kWarpDims / 8][4] = {};
  float largest = kNone, sum = 0.0f;  // of head g; the sum over this lane's keys
  for (int key = task.begin, i = 0; key < task.end; key += kTileKeys, ++i) {
    Stage& stage = shared.stages[i % kStages];
    cuda::wait_copies<kStages - 1>();
    __syncthreads();
    float scores[4] = {};
    scores_of(scores, stage, query);
    const int mine = key + warp * 8 + 2 * t;
    scores[0] = mine < task.end ? scores[0] * wave.desc.scale : kNone;
    scores[1] = mine + 1 < task.end ? scores[1] * wave.desc.scale : kNone;
    const float best = head_max(fmaxf(scores[0], scores[1]));
    if (t == 0) shared.largest[warp][g] = best;
    __syncthreads();
    const float before = largest;
    largest = fmaxf(before, over_warps_max(shared.largest, g));
    const float rescale = expf(before - largest);
    const float first = expf(scores[0] - largest), second = expf(scores[1] - largest);
    sum = sum * rescale + (first + second);
    const uint32_t rounded = cuda::to_bf16_pair(first, second);
    shared.weights[g][warp * 4 + t] = {
        rounded, cuda::to_bf16_pair(first - cuda::bf16_low(rounded), second - cuda::bf16_high(rounded))};
#pragma unroll
    for (auto& four : out) {
#pragma unroll
      for (float& value : four) value *= rescale;
    }
    __syncthreads();
    add_values(out, shared, stage);
    __syncthreads();
    const int ahead = key + kStages * kTileKeys;
    if (ahead < task.end) load_stage(stage, wave, task, ahead);
    cuda::commit_copies();
  }
  sum += __shfl_xor_sync(cuda::kFullWarp, sum, 1);
  sum += __shfl_xor_sync(cuda::kFullWarp, sum, 2);
  if (t == 0) shared.sums[warp][g] = sum;
  __syncthreads();
  if (g >= task.heads) return;
  const int64_t slot = wave.slot(task.token, task.first_head + g, task.split);
  float2* to = reinterpret_cast<float2*>(wave.partials.out + slot * kDim + warp * kWarpDims + 2 * t);
#pragma unroll
  for (int n = 0; n < kWarpDims / 8; ++n) to[n * 4] = {out[n][0] + out[n][2], out[n][1] + out[n][3]};
  if (warp == 0 && t == 0) {
    wave.partials.largest[slot] = largest;
    wave.partials.sum[slot] = (shared.sums[0][g] + shared.sums[1][g]) + (shared.sums[2][g] + shared.sums[3][g]);
  }
}

__global__ void __launch_bounds__(kDim) attention_join(Wave wave) {
  cuda::begin_overlapped();
  const AttentionOp::Args& args = wave.args;
  const int64_t token = wave.base + blockIdx.y;
  if (!wave.live(token)) return;
  const int head = blockIdx.x, d = threadIdx.x, keys = args.batch.positions[token] + 1;
  const int splits = (keys + split_length(keys) - 1) / split_length(keys);
  const int64_t slot = wave.slot(token, head, 0);
  const float *largests = wave.partials.largest + slot, *sums = wave.partials.sum + slot;
  float largest = kNone;
  for (int split = 0; split < splits; ++split) largest = fmaxf(largest, largests[split]);
  float out = 0.0f, sum = 0.0f;
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const float factor = expf(largests[split] - largest);
    sum += sums[split] * factor;
    out += wave.partials.out[(slot + split) * kDim + d] * factor;
  }
  out /= sum;
  if (wave.desc.output_gate) {
    const auto* gate = static_cast<const Bf16Bits*>(args.gate.data) + token * args.gate.stride;
    out *= cuda::sigmoid(cuda::to_float(gate[head * args.gate_stride + d]));
  }
  static_cast<Bf16Bits*>(args.out.data)[token * args.out.stride + head * kDim + d] = cuda::to_bf16(out);
  if (args.lse.data != nullptr && d == 0) {
    static_cast<float*>(args.lse.data)[token * args.lse.stride + head] = largest + logf(sum);
  }
}

Partials place(Workspace& workspace, const AttentionDesc& desc, int64_t tokens) {
  const int64_t slots = std::min<int64_t>(tokens, kWaveTokens) * desc.heads * kMaxSplits;
  const auto floats = [&](int64_t count) { return static_cast<float*>(workspace.take(DType::kF32, 1, count).data); };
  Partials partials;
  partials.out = floats(slots * kDim);
  partials.largest = floats(slots);
  partials.sum = floats(slots);
  return partials;
}

void enqueue(const AttentionDesc& desc, const AttentionOp::Args& args, const Launch& launch) {
  CHECK(args.cache.page_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.cache.k) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(args.cache.v) % 16 == 0,
        "the KV cache must be 16-byte aligned");
  Workspace workspace(launch.workspace);
  Wave wave{desc, args, place(workspace, desc, args.batch.tokens.total), 0, false};
  wave.aligned = reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0 && args.q.stride % 8 == 0;
  // No token sees more keys than its page table holds.
  const int64_t most_keys = int64_t{args.batch.page_table_stride} * args.cache.page_tokens;
  const unsigned splits =
      static_cast<unsigned>(std::min<int64_t>(kMaxSplits, (most_keys + kSplitStep - 1) / kSplitStep));
  const unsigned parts = cuda::blocks_for(desc.heads / desc.kv_heads, kHeads);
  for (; wave.base < args.batch.tokens.total; wave.base += kWaveTokens) {
    const unsigned tokens = std::min(kWaveTokens, args.batch.tokens.total - wave.base);
    cuda::launch("attention cuda_split", cuda::Start::kOverlap, attention_split,
                 dim3(splits, desc.kv_heads * parts, tokens), kWarps * 32, sizeof(Shared), launch.stream, wave);
    cuda::launch("attention cuda_split join", cuda::Start::kOverlap, attention_join, dim3(desc.heads, tokens), kDim, 0,
                 launch.stream, wave);
  }
}

Refusal can_run(const AttentionDesc& desc, const DeviceCaps& caps) {
  if (desc.activation != DType::kBf16 || desc.cache != DType::kBf16) return "activations and cache must be bf16";
  if (desc.head_dim != kDim) return "head_dim must be 256";
  return refuse_attention(desc, caps);
}

size_t workspace_bytes(const AttentionDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, bucket.tokens);
  return counted.used();
}

}  // namespace

const Impl<AttentionOp> kAttentionCudaSplit = {
    .name = "cuda_split",
    .backend = Backend::kCuda,
    .order = [](const AttentionDesc&) { return order_id("attention splits of 128, tiles of 32"); },
    .layout = cuda_row::no_layout<AttentionOp>,
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<PlanPtr<AttentionOp>> {
      cuda::check(cudaFuncSetAttribute(attention_split, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
                  "shared memory of attention cuda_split");
      return cuda_row::make_plan<AttentionOp, AttentionDesc, enqueue>(desc);
    },
};

}  // namespace assay::ops
