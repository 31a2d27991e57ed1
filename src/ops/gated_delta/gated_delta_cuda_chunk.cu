// gated_delta for prefill sequences in chunks of 64 tokens, cut at absolute multiples of 64; decode and verify
// sequences as cuda_recurrent. With G_i = g_1 + .. + g_i inside the chunk and S the state before it:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j, i > j;   T = (I + A)^-1;   P_ij = exp(G_i - G_j) q_i.k_j, i >= j
//   R_i = beta_i (v_i - exp(G_i) S^T k_i);   D = T R;   o_i = exp(G_i) S^T q_i + sum_j P_ij d_j
//   S <- exp(G_n) S + sum_i exp(G_n - G_i) k_i d_i^T
//
// delta_matrices makes T and P of all chunks and value heads, 4 warps each. delta_chunks walks the chunks of a sequence
// with S in registers: 8 warps a value head and 32 columns. Products on the tensor cores in three tf32 passes, which
// keep fp32's precision; G in fp64, so that differences of large sums are right.
// Bytes: q, k, T and P once for each 32 columns, from L2. Bound: latency of a chunk's four dependent products.
#include <climits>

#include "backend/cuda/convert.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/reduce.cuh"
#include "ops/gated_delta/gated_delta_rows.h"
#include "ops/plan_cuda.h"
#include "ops/prefill_pieces_cuda.cuh"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

constexpr int kKeyDim = 128;
constexpr int kChunk = 64;
constexpr int kColumns = 32;  // of a block of delta_chunks
constexpr int kThreads = 256;
constexpr int kMatricesThreads = 128;
// Floats between rows in shared memory: 16 more than a multiple of 32, so that the 16-byte reads of two rows that a
// quarter warp makes meet no bank twice.
constexpr int kKeyPitch = kKeyDim + 16;
constexpr int kChunkPitch = kChunk + 16;

struct Matrices {            // by head, token and index in the token's chunk
  float* inverse = nullptr;  // T [value_heads][tokens][kChunk]
  float* scores = nullptr;   // P
  float* opening = nullptr;  // exp(G_i) [value_heads][tokens]
  float* closing = nullptr;  // exp(G_last - G_i)
  int64_t tokens = 0;
  __device__ __forceinline__ int64_t row(int64_t head, int64_t token) const { return head * tokens + token; }
};

// Four values as sums of two tf32.
struct Operand {
  uint32_t high[4], low[4];
};
__device__ __forceinline__ Operand split(const float4& x) {
  const float values[4] = {x.x, x.y, x.z, x.w};
  Operand operand;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const cuda::Tf32Pair pair = cuda::split_tf32(values[i]);
    operand.high[i] = pair.high;
    operand.low[i] = pair.low;
  }
  return operand;
}

// acc += A B over 16 inner indices, first 4t and 4t + 1 of all t, then 4t + 2 and 4t + 3. a: rows g and g + 8 of A, b:
// column g of B, at inner indices 4t .. 4t + 3. Products of two low parts, 2^-22 of the whole, are left out.
__device__ __forceinline__ void multiply(float (&acc)[4], const Operand (&a)[2], const Operand& b) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    cuda::mma_tf32(acc, a[0].low[i], a[1].low[i], a[0].low[i + 1], a[1].low[i + 1], b.high[i], b.high[i + 1]);
    cuda::mma_tf32(acc, a[0].high[i], a[1].high[i], a[0].high[i + 1], a[1].high[i + 1], b.low[i], b.low[i + 1]);
    cuda::mma_tf32(acc, a[0].high[i], a[1].high[i], a[0].high[i + 1], a[1].high[i + 1], b.high[i], b.high[i + 1]);
  }
}

template <bool kAligned>
__device__ __forceinline__ float4 load4(const float* from, bool valid) {
  if (!valid) return {};
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(from);
  return {from[0], from[1], from[2], from[3]};
}
__device__ __forceinline__ float4 shared4(const float* from) { return *reinterpret_cast<const float4*>(from); }

// Row `token` of q or k for a key head.
__device__ __forceinline__ const float* head_row(const ConstView& view, int64_t token, int64_t key_head) {
  return static_cast<const float*>(view.data) + token * view.stride + key_head * kKeyDim;
}

// totals[i] = g_0 + ... + g_i; past the chunk's end the last. By one warp.
__device__ __forceinline__ void add_gates(double* totals, const ConstView& g, const PrefillPiece& chunk, int64_t head) {
  const int lane = threadIdx.x % 32;
  const auto gate = [&](int i) -> double {
    return i < chunk.count ? static_cast<const float*>(g.data)[(chunk.first + i) * g.stride + head] : 0.0f;
  };
  const double even = gate(2 * lane), odd = gate(2 * lane + 1);
  double sum = even + odd;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double other = __shfl_up_sync(cuda::kFullWarp, sum, distance);
    if (lane >= distance) sum += other;
  }
  double before = __shfl_up_sync(cuda::kFullWarp, sum, 1);
  if (lane == 0) before = 0;
  totals[2 * lane] = before + even;
  totals[2 * lane + 1] = before + even + odd;
}

// Column `column` of (I + a)^-1 by substitution; a is strictly lower triangular, its rows kChunkPitch apart.
__device__ __forceinline__ void invert_column(const float* a, int column, float* inverse, int rows) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 part = shared4(a + i * kChunkPitch + j);
      const float values[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        if (j + l < i) sums[l] = fmaf(values[l], x[j + l], sums[l]);
      }
    }
    x[i] = (i == column ? 1.0f : 0.0f) - ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (i < rows) inverse[i * kChunk + column] = x[i];
  }
}

// A warp makes 16 rows of A and P, up to the diagonal's tile; then a thread a column of T.
template <bool kAligned>
__global__ void __launch_bounds__(kMatricesThreads, 3)
    delta_matrices(GatedDeltaDesc desc, GatedDeltaOp::Args args, Matrices matrices) {
  extern __shared__ __align__(16) float shared[];
  float *keys = shared, *a = shared + kChunk * kKeyPitch;
  __shared__ double totals[kChunk];
  const int lane = threadIdx.x % 32, m = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int64_t head = blockIdx.y, key_head = head / (desc.value_heads / desc.key_heads);
  for (int index = blockIdx.x;; index += gridDim.x) {
    const PrefillPiece chunk = find_prefill_piece(args.batch, kChunk, index);
    if (chunk.count == 0) return;
    for (int row = m; row < kChunk; row += kMatricesThreads / 32) {
      const float* from = head_row(args.k, chunk.first + row, key_head) + 4 * lane;
      *reinterpret_cast<float4*>(keys + row * kKeyPitch + 4 * lane) = load4<kAligned>(from, row < chunk.count);
    }
    if (m == 0) add_gates(totals, args.g, chunk, head);
    __syncthreads();
    const int rows[2] = {16 * m + g, 16 * m + g + 8};
    float key_products[kChunk / 8][4] = {}, query_products[kChunk / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < kKeyDim / 16; ++step) {
      Operand key[2], query[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* q = head_row(args.q, chunk.first + rows[h], key_head);
        key[h] = split(shared4(keys + rows[h] * kKeyPitch + 16 * step + 4 * t));
        query[h] = split(load4<kAligned>(q + 16 * step + 4 * t, rows[h] < chunk.count));
      }
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        if (n > 2 * m + 1) break;
        const Operand column = split(shared4(keys + (8 * n + g) * kKeyPitch + 16 * step + 4 * t));
        multiply(key_products[n], key, column);
        multiply(query_products[n], query, column);
      }
    }
    float* scores = matrices.scores + matrices.row(head, chunk.first) * kChunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = rows[i / 2];
      const bool live = row < chunk.count;
      const float beta =
          live ? static_cast<const float*>(args.beta.data)[(chunk.first + row) * args.beta.stride + head] : 0.0f;
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        if (n > 2 * m + 1) break;
        const int column = 8 * n + 2 * t + i % 2;
        const float decay = column <= row ? expf(static_cast<float>(totals[row] - totals[column])) : 0.0f;
        a[row * kChunkPitch + column] = column < row && live ? beta * (key_products[n][i] * decay) : 0.0f;
        if (live) scores[row * kChunk + column] = column <= row ? query_products[n][i] * decay : 0.0f;
      }
    }
    __syncthreads();
    const int index_in_chunk = threadIdx.x % kChunk;
    if (threadIdx.x < kChunk) {
      invert_column(a, index_in_chunk, matrices.inverse + matrices.row(head, chunk.first) * kChunk, chunk.count);
    } else if (index_in_chunk < chunk.count) {
      const int64_t at = matrices.row(head, chunk.first + index_in_chunk);
      matrices.opening[at] = expf(static_cast<float>(totals[index_in_chunk]));
      matrices.closing[at] = expf(static_cast<float>(totals[kChunk - 1] - totals[index_in_chunk]));
    }
    __syncthreads();
  }
}

// 16 rows of T or P up to the diagonal: steps 0 .. m.
__device__ __forceinline__ void load_triangle(float4 (&rows)[kChunk / 16][2], const float* matrix, int m, int count) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = 16 * m + g;
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    if (step > m) break;
    rows[step][0] = load4<true>(matrix + row * kChunk + 16 * step + 4 * t, row < count);
    rows[step][1] = load4<true>(matrix + (row + 8) * kChunk + 16 * step + 4 * t, row + 8 < count);
  }
}

// acc[n] += rows x columns 8n .. 8n + 7 of `right`, [column][kChunkPitch].
__device__ __forceinline__ void multiply_triangle(float (&acc)[2][4], const float4 (&rows)[kChunk / 16][2],
                                                  const float* right, int m) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    if (step > m) break;
    const Operand left[2] = {split(rows[step][0]), split(rows[step][1])};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      multiply(acc[n], left, split(shared4(right + (8 * n + g) * kChunkPitch + 16 * step + 4 * t)));
    }
  }
}

// Where a thread's elements of a [kChunk][kColumns] product lie: rows 16 m + g and + 8, columns 16 half + 8 n + 2 t.
struct Place {
  int m, half, g, t;
  __device__ __forceinline__ int row(int i) const { return 16 * m + g + i / 2 * 8; }
  __device__ __forceinline__ int column(int n, int i) const { return 16 * half + 8 * n + 2 * t + i % 2; }
};

// S: key dims 16 warp + g and + 8, columns 8 n + 2 t; to shared memory as [column][kKeyPitch].
__device__ __forceinline__ void publish_state(float* states, const float (&state)[kColumns / 8][4]) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      states[(8 * n + 2 * t + i % 2) * kKeyPitch + 16 * warp + g + i / 2 * 8] = state[n][i];
    }
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads, 1)
    delta_chunks(GatedDeltaDesc desc, GatedDeltaOp::Args args, Matrices matrices, uint32_t* flags) {
  __shared__ __align__(16) float states[kColumns * kKeyPitch];    // S, by column
  __shared__ __align__(16) float rest[kColumns * kChunkPitch];    // R, then closing_i d_i
  __shared__ __align__(16) float deltas[kColumns * kChunkPitch];  // D
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Place place{warp / 2, warp % 2, lane / 4, lane % 4};
  const int64_t head = blockIdx.y, key_head = head / (desc.value_heads / desc.key_heads), width = desc.value_dim;
  const int64_t first_column = blockIdx.x * kColumns;
  for (int index = blockIdx.z;; index += gridDim.z) {
    const PrefillPiece all = find_prefill_piece(args.batch, INT_MAX, index);
    if (all.count == 0) return;
    const int32_t read = args.batch.state_read[all.sequence];
    const int64_t offset = (head * kKeyDim + 16 * warp + place.g) * width + first_column + 2 * place.t;
    const float* before = args.state.delta + read * args.state.delta_stride + offset;
    float state[kColumns / 8][4];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] = read < 0 ? 0.0f : before[i / 2 * 8 * width + 8 * n + i % 2];
    }
    const int end = all.first + all.count;
    for (int first = all.first; first < end;) {
      const int count = min(end - first, kChunk - args.batch.positions[first] % kChunk);
      publish_state(states, state);
      float4 triangle[kChunk / 16][2];
      load_triangle(triangle, matrices.inverse + matrices.row(head, first) * kChunk, place.m, count);
      float opening[2], closing[2], beta[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = place.row(2 * h);
        const int64_t token = first + min(row, count - 1);
        opening[h] = matrices.opening[matrices.row(head, token)];
        closing[h] = matrices.closing[matrices.row(head, token)];
        beta[h] = row < count ? static_cast<const float*>(args.beta.data)[token * args.beta.stride + head] : 0.0f;
      }
      const float decay = matrices.opening[matrices.row(head, first + count - 1)];
      __syncthreads();  // the state is there; nobody reads rest and deltas
      float out[2][4] = {}, memory[2][4] = {};
      const float* q[2] = {head_row(args.q, first + place.row(0), key_head) + 4 * place.t,
                           head_row(args.q, first + place.row(2), key_head) + 4 * place.t};
      const float* k[2] = {head_row(args.k, first + place.row(0), key_head) + 4 * place.t,
                           head_row(args.k, first + place.row(2), key_head) + 4 * place.t};
      const bool valid[2] = {place.row(0) < count, place.row(2) < count};
#pragma unroll 4
      for (int step = 0; step < kKeyDim / 16; ++step) {
        const Operand query[2] = {split(load4<kAligned>(q[0] + 16 * step, valid[0])),
                                  split(load4<kAligned>(q[1] + 16 * step, valid[1]))};
        const Operand key[2] = {split(load4<kAligned>(k[0] + 16 * step, valid[0])),
                                split(load4<kAligned>(k[1] + 16 * step, valid[1]))};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const Operand column =
              split(shared4(states + (16 * place.half + 8 * n + place.g) * kKeyPitch + 16 * step + 4 * place.t));
          multiply(memory[n], key, column);
          multiply(out[n], query, column);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t token = first + min(place.row(i), count - 1);
          const float v = cuda::to_float(static_cast<const cuda::Bf16Bits*>(
              args.v.data)[token * args.v.stride + head * width + first_column + place.column(n, i)]);
          rest[place.column(n, i) * kChunkPitch + place.row(i)] = beta[i / 2] * (v - opening[i / 2] * memory[n][i]);
          out[n][i] *= opening[i / 2];
        }
      }
      __syncthreads();
      // Loaded here for the products after the next barriers.
      float4 turned[kChunk / 16][2];  // rows of K^T
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float values[4];
#pragma unroll
          for (int l = 0; l < 4; ++l) {
            const int row = 16 * step + 4 * place.t + l;
            values[l] = row < count ? head_row(args.k, first + row, key_head)[16 * warp + place.g + 8 * h] : 0.0f;
          }
          turned[step][h] = {values[0], values[1], values[2], values[3]};
        }
      }
      float delta[2][4] = {};
      multiply_triangle(delta, triangle, rest + 16 * place.half * kChunkPitch, place.m);
      load_triangle(triangle, matrices.scores + matrices.row(head, first) * kChunk, place.m, count);
      __syncthreads();  // nobody reads R
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = place.column(n, i) * kChunkPitch + place.row(i);
          deltas[at] = delta[n][i];
          rest[at] = closing[i / 2] * delta[n][i];
        }
      }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state[n][i] *= decay;
      }
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        const Operand left[2] = {split(turned[step][0]), split(turned[step][1])};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          multiply(state[n], left, split(shared4(rest + (8 * n + place.g) * kChunkPitch + 16 * step + 4 * place.t)));
        }
      }
      multiply_triangle(out, triangle, deltas + 16 * place.half * kChunkPitch, place.m);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (place.row(i) >= count) continue;
          static_cast<cuda::Bf16Bits*>(args.out.data)[(first + place.row(i)) * args.out.stride + head * width +
                                                      first_column + place.column(n, i)] = cuda::to_bf16(out[n][i]);
        }
      }
      first += count;
    }
    float* after = args.state.delta + args.batch.state_write[all.sequence] * args.state.delta_stride + offset;
    bool finite = true;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        after[i / 2 * 8 * width + 8 * n + i % 2] = state[n][i];
        finite = finite && isfinite(state[n][i]);
      }
    }
    cuda::flag(flags, Sentinel::kNonFiniteState, !finite);
    __syncthreads();  // before the next sequence's state is published
  }
}

constexpr int kMatricesShared = kChunk * (kKeyPitch + kChunkPitch) * static_cast<int>(sizeof(float));
static_assert(kMatricesShared + kChunk * sizeof(double) <= 101376);

struct State {
  GatedDeltaDesc desc;
  PlanPtr<GatedDeltaOp> few;  // for decode and verify sequences
};

Matrices place(Workspace& workspace, const GatedDeltaDesc& desc, int64_t tokens) {
  const auto floats = [&](int64_t per_row) {
    return static_cast<float*>(workspace.take(DType::kF32, desc.value_heads * tokens, per_row).data);
  };
  Matrices matrices;
  matrices.inverse = floats(kChunk);
  matrices.scores = floats(kChunk);
  matrices.opening = floats(1);
  matrices.closing = floats(1);
  matrices.tokens = tokens;
  return matrices;
}

bool aligned_rows(const ConstView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride % 4 == 0;
}

template <bool kAligned>
void launch_chunks(const GatedDeltaDesc& desc, const GatedDeltaOp::Args& args, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Matrices matrices = place(workspace, desc, args.batch.tokens.total);
  const unsigned chunks = prefill_blocks(args.batch.tokens, kChunk);
  const unsigned sequences = std::min(static_cast<unsigned>(args.batch.sequences), chunks);
  cuda::launch("gated_delta cuda_chunk matrices", delta_matrices<kAligned>, dim3(chunks, desc.value_heads),
               kMatricesThreads, kMatricesShared, launch.stream, desc, args, matrices);
  cuda::launch("gated_delta cuda_chunk", delta_chunks<kAligned>,
               dim3(desc.value_dim / kColumns, desc.value_heads, sequences), kThreads, 0, launch.stream, desc, args,
               matrices, cuda_row::flag_word(launch));
}

// A bucket of decode tokens alone: should its live counts hold prefill tokens after all, they get right values in the
// recurrent order.
void enqueue(const State& state, const GatedDeltaOp::Args& args, const Launch& launch) {
  const TokenCounts& tokens = args.batch.tokens;
  if (tokens.decode > 0) {
    GatedDeltaOp::Args decode = args;
    decode.batch.tokens.total = tokens.decode;
    state.few->enqueue(decode, launch);
  }
  if (tokens.decode == tokens.total) return;
  const bool aligned = aligned_rows(args.q) && aligned_rows(args.k);
  (aligned ? launch_chunks<true> : launch_chunks<false>)(state.desc, args, launch);
}

size_t workspace_bytes(const GatedDeltaDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, bucket.tokens);
  return counted.used();
}

Result<PlanPtr<GatedDeltaOp>> make(const GatedDeltaDesc& desc, const Bucket& bucket, const NoWeights& weights,
                                   MakeContext& context) {
  for (auto* kernel : {delta_matrices<true>, delta_matrices<false>}) {
    cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMatricesShared),
                "shared memory of gated_delta cuda_chunk");
  }
  State state{desc, nullptr};
  ASSAY_ASSIGN(state.few, kGatedDeltaCudaRecurrent.make(desc, bucket, weights, context));
  return cuda_row::make_plan<GatedDeltaOp, State, enqueue>(std::move(state));
}

}  // namespace

const Impl<GatedDeltaOp> kGatedDeltaCudaChunk = {
    .name = "cuda_chunk",
    .backend = Backend::kCuda,
    .order = [](const GatedDeltaDesc&) { return kGatedDeltaChunkOrder; },
    .layout = cuda_row::no_layout<GatedDeltaOp>,
    .can_run = [](const GatedDeltaDesc& desc,
                  const DeviceCaps& caps) { return kGatedDeltaCudaRecurrent.can_run(desc, caps); },
    .workspace_bytes = workspace_bytes,
    .make = make,
};

}  // namespace assay::ops
