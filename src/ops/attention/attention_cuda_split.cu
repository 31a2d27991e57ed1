// attention with the keys of a token cut into at most 64 splits: one block of 4 warps a token, split and up to 8 of the
// query heads that share a key head: they are rows of mma.sync for the scores; values are summed in fp32 outside the
// tensor cores. A second kernel joins the splits in order.
//
// Split length: 64 * ceil((position + 1) / 4096), a function of the position alone, so decode, verify and prefill
// tokens get the same bits. Inside a split warp w takes keys 16 w .. 16 w + 15 of every 64. Bytes: K and V once a token
// and key head. Bound: device memory (decode); prefill rereads keys from L2.
// H200, 16/2 heads, 4096 keys: 18.6 us for 1 token, 288 us for 64 (45 % of the copy bandwidth).
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/attention/attention_rows.h"
#include "ops/plan_cuda.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kDim = 256;
constexpr int kWarps = 4;
constexpr int kHeads = 8;                   // query heads of a block: rows 0 to 7 of the tensor cores' 16
constexpr int kQueryPitch = kDim * 2 + 64;  // bytes: neighbouring heads in different banks
constexpr int kMaxSplits = 64;
constexpr int kSplitStep = 64;   // keys; 16 a warp
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

// Online softmax of one warp over its keys: all heads for the lane's 8 output dims.
struct Running {
  float out[kHeads][8] = {};
  float largest = kNone;  // of head g
  float sum = 0.0f;
};

// Scores of 16 keys (two tiles of 8) against the heads: row g of the tiles.
__device__ __forceinline__ void scores_of(float (&scores)[2][4], const std::byte* queries,
                                          const Bf16Bits* const (&keys)[2]) {
  const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    uint4 key[kDim / 32];
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) key[c] = *reinterpret_cast<const uint4*>(keys[tile] + 32 * c + 8 * t);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
      const uint4 query = *reinterpret_cast<const uint4*>(queries + g * kQueryPitch + (32 * c + 8 * t) * 2);
      cuda::mma_bf16(scores[tile], query.x, 0, query.y, 0, key[c].x, key[c].y);
      cuda::mma_bf16(scores[tile], query.z, 0, query.w, 0, key[c].z, key[c].w);
    }
  }
}

// Turns scores into weights in `weights` [16 keys][kHeads] and updates largest and sum; `rescale` [kHeads].
__device__ __forceinline__ void softmax_step(Running& running, const float (&scores)[2][4], float scale, int valid,
                                             float* weights, float* rescale) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float values[4], largest = running.largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = i / 2 * 8 + 2 * t + i % 2;
    values[i] = key < valid ? scores[i / 2][i % 2] * scale : kNone;
    largest = fmaxf(largest, values[i]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullWarp, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullWarp, largest, 2));
  const float factor = expf(running.largest - largest);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float weight = expf(values[i] - largest);
    weights[(i / 2 * 8 + 2 * t + i % 2) * kHeads + g] = weight;
    sum += weight;
  }
  sum += __shfl_xor_sync(cuda::kFullWarp, sum, 1);
  sum += __shfl_xor_sync(cuda::kFullWarp, sum, 2);
  running.sum = running.sum * factor + sum;
  running.largest = largest;
  if (t == 0) rescale[g] = factor;
}

__device__ __forceinline__ void add_value(Running& running, const uint4& value, const float* weights) {
  const float v[8] = {cuda::bf16_low(value.x),  cuda::bf16_high(value.x), cuda::bf16_low(value.y),
                      cuda::bf16_high(value.y), cuda::bf16_low(value.z),  cuda::bf16_high(value.z),
                      cuda::bf16_low(value.w),  cuda::bf16_high(value.w)};
#pragma unroll
  for (int h = 0; h < kHeads; h += 4) {
    const float4 w = *reinterpret_cast<const float4*>(weights + h);
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      running.out[h][d] = fmaf(w.x, v[d], running.out[h][d]);
      running.out[h + 1][d] = fmaf(w.y, v[d], running.out[h + 1][d]);
      running.out[h + 2][d] = fmaf(w.z, v[d], running.out[h + 2][d]);
      running.out[h + 3][d] = fmaf(w.w, v[d], running.out[h + 3][d]);
    }
  }
}

// Joins the warps in order through `joined` [kHeads][dim % 8][dim / 8], which may be memory of the loop before, and
// writes the split's partial result.
__device__ __forceinline__ void join_warps(const Wave& wave, const Running& running, int64_t token, int first_head,
                                           int heads, int split, float* joined, float (*largests)[kHeads],
                                           float (*sums)[kHeads]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane % 4 == 0) {
    largests[warp][lane / 4] = running.largest;
    sums[warp][lane / 4] = running.sum;
  }
  __syncthreads();  // also: no warp reads its values any more
  for (int w = 0; w < kWarps; ++w) {
    if (warp == w) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float largest = fmaxf(fmaxf(largests[0][h], largests[1][h]), fmaxf(largests[2][h], largests[3][h]));
        const float factor = expf(largests[w][h] - largest);
#pragma unroll
        for (int d = 0; d < 8; ++d) {
          float* to = joined + (h * 8 + d) * 32 + lane;
          *to = (w == 0 ? 0.0f : *to) + running.out[h][d] * factor;
        }
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < heads * kDim; i += kWarps * 32) {
    const int head = i / kDim, dim = i % kDim;
    wave.partials.out[wave.slot(token, first_head + head, split) * kDim + dim] =
        joined[(head * 8 + dim % 8) * 32 + dim / 8];
  }
  if (static_cast<int>(threadIdx.x) < heads) {
    const int h = threadIdx.x;
    const float largest = fmaxf(fmaxf(largests[0][h], largests[1][h]), fmaxf(largests[2][h], largests[3][h]));
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += sums[w][h] * expf(largests[w][h] - largest);
    wave.partials.largest[wave.slot(token, first_head + h, split)] = largest;
    wave.partials.sum[wave.slot(token, first_head + h, split)] = sum;
  }
}

__global__ void __launch_bounds__(kWarps * 32, 3) attention_split(Wave wave) {
  __shared__ __align__(16) std::byte queries[kHeads * kQueryPitch];
  __shared__ __align__(16) std::byte values[kWarps][16 * kDim * 2];
  __shared__ __align__(16) float weights[kWarps][16 * kHeads];
  __shared__ __align__(16) float rescale[kWarps][kHeads];
  __shared__ float largests[kWarps][kHeads], sums[kWarps][kHeads];
  const AttentionOp::Args& args = wave.args;
  const int64_t token = wave.base + blockIdx.z;
  if (!wave.live(token)) return;
  const int keys = args.batch.positions[token] + 1, length = split_length(keys), split = blockIdx.x;
  const int begin = split * length, end = min(keys, begin + length);
  if (begin >= keys) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int shared_by = wave.desc.heads / wave.desc.kv_heads, parts = (shared_by + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / parts, first = blockIdx.y % parts * kHeads;
  const int first_head = kv_head * shared_by + first, heads = min(kHeads, shared_by - first);
  const KvCacheView& cache = args.cache;
  const int32_t* pages = args.batch.page_table + int64_t{args.batch.sequence_of[token]} * args.batch.page_table_stride;
  const auto offset = [&](int position) {
    return pages[position / cache.page_tokens] * cache.page_stride +
           (int64_t{kv_head} * cache.page_tokens + position % cache.page_tokens) * kDim;
  };
  for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kWarps * 32) {
    const int head = i / (kDim / 8), unit = i % (kDim / 8);
    const auto* q = static_cast<const Bf16Bits*>(args.q.data) + token * args.q.stride;
    const uint4 part = head < heads ? cuda::load8(q + (first_head + head) * kDim + unit * 8, wave.aligned) : uint4{};
    *reinterpret_cast<uint4*>(queries + head * kQueryPitch + unit * 16) = part;
  }
  __syncthreads();
  const auto* k_data = static_cast<const Bf16Bits*>(cache.k);
  const auto* v_data = static_cast<const Bf16Bits*>(cache.v);
  Running running;
  for (int key = begin + warp * 16; key < end; key += kSplitStep) {
    const int valid = min(16, end - key);
    const Bf16Bits* key_rows[2] = {k_data + offset(min(key + g, end - 1)), k_data + offset(min(key + 8 + g, end - 1))};
    // The values travel while the scores are made.
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      cuda::copy_async16(cuda::shared_address(values[warp] + (j * 32 + lane) * 16),
                         v_data + offset(min(key + j, end - 1)) + lane * 8, true);
    }
    cuda::commit_copies();
    float scores[2][4];
    scores_of(scores, queries, key_rows);
    softmax_step(running, scores, wave.desc.scale, valid, weights[warp], rescale[warp]);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float factor = rescale[warp][h];
#pragma unroll
      for (int d = 0; d < 8; ++d) running.out[h][d] *= factor;
    }
    cuda::wait_copies<0>();
    __syncwarp();
#pragma unroll 4
    for (int j = 0; j < 16; ++j) {
      add_value(running, reinterpret_cast<const uint4*>(values[warp])[j * 32 + lane], weights[warp] + j * kHeads);
    }
    __syncwarp();
  }
  join_warps(wave, running, token, first_head, heads, split, reinterpret_cast<float*>(values), largests, sums);
}

__global__ void __launch_bounds__(kDim) attention_join(Wave wave) {
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
    cuda::launch("attention cuda_split", attention_split, dim3(splits, desc.kv_heads * parts, tokens), kWarps * 32, 0,
                 launch.stream, wave);
    cuda::launch("attention cuda_split join", attention_join, dim3(desc.heads, tokens), kDim, 0, launch.stream, wave);
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
    .order = [](const AttentionDesc&) { return order_id("attention 64 splits, 4 warps of 16 keys"); },
    .layout = cuda_row::no_layout<AttentionOp>,
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = [](const AttentionDesc& desc, const Bucket&, const NoWeights&, MakeContext&)
        -> Result<PlanPtr<AttentionOp>> { return cuda_row::make_plan<AttentionOp, AttentionDesc, enqueue>(desc); },
};

}  // namespace assay::ops
