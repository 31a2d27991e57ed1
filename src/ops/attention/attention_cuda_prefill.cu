// attention for prefill tokens in tiles of 64 keys, one page; decode and verify tokens as cuda_split.
//
// A block of 8 warps takes 64 query rows (up to 64 / group tokens times the query heads of one key head): a warp 16
// rows and one half of every tile, keys 0 .. 31 or 32 .. 63, with an online softmax of its own; the halves are joined
// at the end. Scores and values on the tensor cores, the weights rounded to bf16 before both their sum and the values'
// (the rounding that attention_cases.cc declares). Values travel (cp.async) while scores are made, the next keys while
// values are added. Bytes: K and V once a block, from L2. Bound: shared memory, 80 ldmatrix for 128 mma.
// H200, 16/2 heads, 512 tokens: 43 us alone, 359 us after 7,680 (185 TFLOP/s).
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/convert.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/attention/attention_rows.h"
#include "ops/plan_cuda.h"
#include "ops/prefill_pieces_cuda.cuh"

namespace assay::ops {
namespace {

using cuda::Bf16Bits;

constexpr int kDim = 256;
constexpr int kThreads = 256;
constexpr int kRows = 64;            // query rows of a block
constexpr int kKeys = 64;            // of a tile
constexpr int kHalf = kKeys / 2;     // keys of a tile that a warp takes
constexpr int kRowBytes = kDim * 2;  // in shared memory, where unit u of row r (16 bytes) lies at u ^ (r % 8)
constexpr int kTileBytes = kKeys * kRowBytes;
constexpr int kSharedBytes = 3 * kTileBytes;
constexpr int kJoinPitch = kDim + 8;  // floats
static_assert(kRows == kKeys && kSharedBytes <= 101376);
static_assert((kRows * kJoinPitch + 2 * kRows) * sizeof(float) <= kSharedBytes);
constexpr float kNone = -INFINITY;

struct Prefill {
  AttentionDesc desc;
  AttentionOp::Args args;
  int group = 0;         // query heads of a key head
  int piece_tokens = 0;  // tokens of a block; group * piece_tokens <= kRows
  bool aligned = false;
};

// 2^x, within 2^-22 of it.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Online softmax of one warp over its keys, for rows g and g + 8: scores and `largest` are times log2(e).
struct Running {
  float out[kDim / 8][4] = {};
  float largest[2] = {kNone, kNone};
  float sum[2] = {};  // of this lane's keys
};

// 64 rows of keys or values; rows from `live` on become zeros.
__device__ __forceinline__ void load_tile(uint32_t to, const Bf16Bits* from, int live) {
  const int unit = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    const int row = warp + 8 * i;
    cuda::copy_async16(to + row * kRowBytes + (unit ^ warp) * 16, from + row * kDim + unit * 8, row < live);
  }
}

__device__ __forceinline__ void load_queries(std::byte* to, const Prefill& prefill, const PrefillPiece& piece,
                                             int first_head) {
  const int unit = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* q = static_cast<const Bf16Bits*>(prefill.args.q.data);
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    const int row = warp + 8 * i, token = row / prefill.group, head = first_head + row % prefill.group;
    const bool valid = token < piece.count;
    const Bf16Bits* from =
        q + (valid ? (piece.first + token) * prefill.args.q.stride + int64_t{head} * kDim + unit * 8 : 0);
    std::byte* unit_at = to + row * kRowBytes + (unit ^ warp) * 16;
    if (prefill.aligned) {
      cuda::copy_async16(cuda::shared_address(unit_at), from, valid);
    } else {
      *reinterpret_cast<uint4*>(unit_at) = valid ? cuda::load8(from, false) : uint4{};
    }
  }
}

// Scores of the warp's 16 rows with its 32 keys. Rows start at multiples of kRowBytes, so a unit's bits are XORed in.
__device__ __forceinline__ void scores_of(float (&scores)[4][4], uint32_t queries, uint32_t keys) {
  const int r = threadIdx.x % 8, m = threadIdx.x % 32 / 8;
  const uint32_t query = queries + (r + 8 * (m % 2)) * kRowBytes + ((m / 2) ^ r) * 16;
  const uint32_t key = keys + (r + 8 * (m / 2)) * kRowBytes + ((m % 2) ^ r) * 16;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t q[4], k[2][4];
    cuda::load_matrices(q, query ^ (step * 32));
    cuda::load_matrices(k[0], key ^ (step * 32));
    cuda::load_matrices(k[1], (key + 16 * kRowBytes) ^ (step * 32));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      cuda::mma_bf16(scores[n], q[0], q[1], q[2], q[3], k[n / 2][n % 2 * 2], k[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// Scales and masks the scores: this lane's keys are key + 8 n + i % 2, its rows see keys up to `positions`.
__device__ __forceinline__ void mask(float (&scores)[4][4], float scale, int key, const int (&positions)[2],
                                     bool edge) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] *= scale;
      if (edge && key + 8 * n + i % 2 > positions[i / 2]) scores[n][i] = kNone;
    }
  }
}

// Turns scores into bf16 weights, the A operands of two k16 steps, and rescales what was added before.
__device__ __forceinline__ void softmax_step(Running& running, const float (&scores)[4][4], uint32_t (&weights)[2][4]) {
  float base[2], factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = running.largest[h];
#pragma unroll
    for (int n = 0; n < 4; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullWarp, largest, 2));
    base[h] = largest == kNone ? 0.0f : largest;  // no key seen so far: all weights are 0
    factor[h] = exp2_fast(running.largest[h] - base[h]);
    running.largest[h] = largest;
    running.sum[h] *= factor[h];
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair =
          cuda::to_bf16_pair(exp2_fast(scores[n][2 * h] - base[h]), exp2_fast(scores[n][2 * h + 1] - base[h]));
      running.sum[h] += cuda::bf16_low(pair) + cuda::bf16_high(pair);
      weights[n / 2][n % 2 * 2 + h] = pair;
    }
  }
  // Times 1 changes nothing: most tiles hold no new largest score.
  if (!__any_sync(cuda::kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) running.out[n][i] *= factor[i / 2];
  }
}

__device__ __forceinline__ void add_values(Running& running, const uint32_t (&weights)[2][4], uint32_t values) {
  const int r = threadIdx.x % 8, m = threadIdx.x % 32 / 8;
  const uint32_t value = values + (r + 8 * (m % 2)) * kRowBytes + ((m / 2) ^ r) * 16;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int pair = 0; pair < kDim / 16; ++pair) {
      uint32_t v[4];
      cuda::load_matrices_transposed(v, (value + step * 16 * kRowBytes) ^ (pair * 32));
      const uint32_t(&w)[4] = weights[step];
      cuda::mma_bf16(running.out[2 * pair], w[0], w[1], w[2], w[3], v[0], v[1]);
      cuda::mma_bf16(running.out[2 * pair + 1], w[0], w[1], w[2], w[3], v[2], v[3]);
    }
  }
}

// Joins the two halves of the keys, first the low one: [kRows][kJoinPitch] floats, divided by the sum.
__device__ __forceinline__ void join_halves(Running& running, float* joined, float* lse) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  float* largests = joined + kRows * kJoinPitch;
  float* sums = largests + kRows;
  const int row = warp % 4 * 16 + g;
  float* at[2] = {joined + row * kJoinPitch + 2 * t, joined + (row + 8) * kJoinPitch + 2 * t};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    running.sum[h] += __shfl_xor_sync(cuda::kFullWarp, running.sum[h], 1);
    running.sum[h] += __shfl_xor_sync(cuda::kFullWarp, running.sum[h], 2);
  }
  __syncthreads();  // nobody reads tiles any more
  if (warp >= 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largests[row + 8 * h] = running.largest[h];
      sums[row + 8 * h] = running.sum[h];
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<float2*>(at[h] + 8 * n) = {running.out[n][2 * h], running.out[n][2 * h + 1]};
      }
    }
  }
  __syncthreads();
  if (warp >= 4) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float other = largests[row + 8 * h], largest = fmaxf(running.largest[h], other);
    float mine = exp2_fast(running.largest[h] - largest), theirs = exp2_fast(other - largest);
    const float sum = running.sum[h] * mine + sums[row + 8 * h] * theirs;
    mine /= sum;
    theirs /= sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      auto* to = reinterpret_cast<float2*>(at[h] + 8 * n);
      const float2 high = *to;
      *to = {running.out[n][2 * h] * mine + high.x * theirs, running.out[n][2 * h + 1] * mine + high.y * theirs};
    }
    constexpr float kLn2 = 0.693147181f;
    lse[h] = largest * kLn2 + logf(sum);
  }
}

__device__ __forceinline__ void store_rows(const Prefill& prefill, const PrefillPiece& piece, int first_head,
                                           const float* joined) {
  const AttentionOp::Args& args = prefill.args;
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kRows; row += kThreads / 32) {
    if (row / prefill.group >= piece.count) break;
    const int64_t token = piece.first + row / prefill.group;
    const int head = first_head + row % prefill.group;
    const auto* gate =
        static_cast<const Bf16Bits*>(args.gate.data) + token * args.gate.stride + head * args.gate_stride;
    auto* out = static_cast<Bf16Bits*>(args.out.data) + token * args.out.stride + int64_t{head} * kDim;
#pragma unroll
    for (int d = lane; d < kDim; d += 32) {
      const float open = prefill.desc.output_gate ? cuda::sigmoid(cuda::to_float(gate[d])) : 1.0f;
      out[d] = cuda::to_bf16(joined[row * kJoinPitch + d] * open);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) attention_prefill(const __grid_constant__ Prefill prefill) {
  extern __shared__ __align__(1024) std::byte shared[];
  const AttentionOp::Args& args = prefill.args;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int kv_head = blockIdx.y, first_head = kv_head * prefill.group, warp_row = warp % 4 * 16;
  const uint32_t queries = cuda::shared_address(shared), keys = queries + kTileBytes, values = keys + kTileBytes;
  const auto* k_data = static_cast<const Bf16Bits*>(args.cache.k);
  const auto* v_data = static_cast<const Bf16Bits*>(args.cache.v);
  constexpr float kLog2E = 1.44269504f;
  const float scale = prefill.desc.scale * kLog2E;
  for (int index = blockIdx.x;; index += gridDim.x) {
    const PrefillPiece piece = find_prefill_piece(args.batch, prefill.piece_tokens, index);
    if (piece.count == 0) return;
    const int first_position = args.batch.positions[piece.first], last_position = first_position + piece.count - 1;
    const int32_t* pages = args.batch.page_table + int64_t{piece.sequence} * args.batch.page_table_stride;
    const auto offset = [&](int tile) {
      const int position = tile * kKeys, page = position / args.cache.page_tokens;
      return pages[page] * args.cache.page_stride +
             (int64_t{kv_head} * args.cache.page_tokens + position % args.cache.page_tokens) * kDim;
    };
    const auto position_of = [&](int row) { return min(first_position + row / prefill.group, last_position); };
    const int positions[2] = {position_of(warp_row + g), position_of(warp_row + g + 8)};
    const int lowest = position_of(warp_row), highest = position_of(warp_row + 15);
    int64_t now = offset(0);
    load_queries(shared, prefill, piece, first_head);
    load_tile(keys, k_data + now, last_position + 1);
    cuda::commit_copies();
    Running running;
    for (int base = 0; base <= last_position; base += kKeys) {
      const bool more = base + kKeys <= last_position;
      const int64_t next = more ? offset(base / kKeys + 1) : 0;
      const int first_key = base + warp / 4 * kHalf;
      const bool seen = first_key <= highest;  // a tile of keys that no row sees would change nothing
      cuda::wait_copies<0>();
      __syncthreads();  // the keys are there, and nobody reads values
      load_tile(values, v_data + now, last_position + 1 - base);
      cuda::commit_copies();
      uint32_t weights[2][4];
      if (seen) {
        float scores[4][4];
        scores_of(scores, queries + warp_row * kRowBytes, keys + warp / 4 * kHalf * kRowBytes);
        mask(scores, scale, first_key + 2 * t, positions, first_key + kHalf - 1 > lowest);
        softmax_step(running, scores, weights);
      }
      cuda::wait_copies<0>();
      __syncthreads();  // the values are there, and nobody reads keys
      if (more) load_tile(keys, k_data + next, last_position + 1 - base - kKeys);
      cuda::commit_copies();
      if (seen) add_values(running, weights, values + warp / 4 * kHalf * kRowBytes);
      now = next;
    }
    float lse[2];
    auto* joined = reinterpret_cast<float*>(shared);
    join_halves(running, joined, lse);
    if (args.lse.data != nullptr && warp < 4 && t == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + g + 8 * h, token = row / prefill.group;
        if (token >= piece.count) continue;
        static_cast<float*>(args.lse.data)[(piece.first + token) * args.lse.stride + first_head + row % prefill.group] =
            lse[h];
      }
    }
    __syncthreads();
    store_rows(prefill, piece, first_head, joined);
    __syncthreads();
  }
}

struct State {
  AttentionDesc desc;
  PlanPtr<AttentionOp> few;  // for decode and verify tokens
};

// A bucket of decode tokens alone: should its live counts hold prefill tokens after all, they get right values in the
// decode order.
void enqueue(const State& state, const AttentionOp::Args& args, const Launch& launch) {
  const TokenCounts& tokens = args.batch.tokens;
  if (tokens.decode > 0) {
    AttentionOp::Args decode = args;
    decode.batch.tokens.total = tokens.decode;
    state.few->enqueue(decode, launch);
  }
  if (tokens.decode == tokens.total) return;
  CHECK(args.cache.page_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.cache.k) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(args.cache.v) % 16 == 0 && args.cache.page_tokens % kKeys == 0,
        "the KV cache must be 16-byte aligned, its pages multiples of {} tokens", kKeys);
  Prefill prefill{state.desc, args, state.desc.heads / state.desc.kv_heads, 1, false};
  while (2 * prefill.piece_tokens * prefill.group <= kRows) prefill.piece_tokens *= 2;
  prefill.aligned = reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0 && args.q.stride % 8 == 0;
  cuda::launch("attention cuda_prefill", attention_prefill,
               dim3(prefill_blocks(tokens, prefill.piece_tokens), state.desc.kv_heads), kThreads, kSharedBytes,
               launch.stream, prefill);
}

Refusal can_run(const AttentionDesc& desc, const DeviceCaps& caps) {
  if (desc.kv_heads > 0 && desc.heads / desc.kv_heads > kRows) return "more than 64 query heads share a key head";
  return kAttentionCudaSplit.can_run(desc, caps);
}

}  // namespace

const Impl<AttentionOp> kAttentionCudaPrefill = {
    .name = "cuda_prefill",
    .backend = Backend::kCuda,
    .order = [](const AttentionDesc&) { return kAttentionTilesOrder; },
    .layout = cuda_row::no_layout<AttentionOp>,
    .can_run = can_run,
    .workspace_bytes = [](const AttentionDesc& desc, const Bucket& bucket,
                          MakeContext& context) { return kAttentionCudaSplit.workspace_bytes(desc, bucket, context); },
    .make = [](const AttentionDesc& desc, const Bucket& bucket, const NoWeights& weights,
               MakeContext& context) -> Result<PlanPtr<AttentionOp>> {
      cuda::check(cudaFuncSetAttribute(attention_prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
                  "shared memory of attention cuda_prefill");
      State state{desc, nullptr};
      ASSAY_ASSIGN(state.few, kAttentionCudaSplit.make(desc, bucket, weights, context));
      return cuda_row::make_plan<AttentionOp, State, enqueue>(std::move(state));
    },
};

}  // namespace assay::ops
