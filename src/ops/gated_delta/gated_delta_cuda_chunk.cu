// gated_delta for prefill sequences in chunks of 64 tokens, cut at absolute multiples of 64; decode and verify
// sequences as cuda_recurrent. With G_i = g_1 + .. + g_i inside the chunk and S the state before it:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j, i > j;   T = (I + A)^-1;   P_ij = exp(G_i - G_j) q_i.k_j, i >= j
//   R_i = beta_i (v_i - exp(G_i) S^T k_i);   D = T R;   o_i = exp(G_i) S^T q_i + sum_j P_ij d_j
//   S <- exp(G_n) S + sum_i exp(G_n - G_i) k_i d_i^T
//
// delta_matrices makes T and P of all chunks and value heads, 4 warps each. delta_chunks walks the chunks of a sequence
// with S in registers: 8 warps a value head and 32 columns. Products on the tensor cores in three tf32 passes, which
// leave out 2^-19 of a product; G in fp64, so that differences of large sums are right.
// Bytes: q, k, T and P once for each 32 columns, from L2. Bound: latency of a chunk's four dependent products.
// H200, 16/32 heads, 512 tokens of one sequence: 87 us.
#include <climits>

#include "backend/cuda/async_copy.cuh"
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
constexpr int kInversePitch = kChunk + 4;  // floats between the rows of A in shared memory

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

// acc[n] += A B[n] over 16 inner indices, first 4t and 4t + 1 of all t, then 4t + 2 and 4t + 3. a: rows g and g + 8 of
// A, b[n]: column g of B[n], at inner indices 4t .. 4t + 3. Products of two low parts, 2^-20 of the whole, are left
// out. Neighbouring instructions belong to different sums.
template <int kTiles>
__device__ __forceinline__ void multiply(float (&acc)[kTiles][4], const Operand (&a)[2], const Operand (&b)[kTiles]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      cuda::mma_tf32(acc[n], a[0].low[i], a[1].low[i], a[0].low[i + 1], a[1].low[i + 1], b[n].high[i],
                     b[n].high[i + 1]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      cuda::mma_tf32(acc[n], a[0].high[i], a[1].high[i], a[0].high[i + 1], a[1].high[i + 1], b[n].low[i],
                     b[n].low[i + 1]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      cuda::mma_tf32(acc[n], a[0].high[i], a[1].high[i], a[0].high[i + 1], a[1].high[i + 1], b[n].high[i],
                     b[n].high[i + 1]);
    }
  }
}

// A matrix of kWidth columns in shared memory, in units of four floats: unit u of row r lies at u ^ mask(r), so that
// the 16-byte reads of two rows that a quarter warp makes meet no bank twice.
template <int kWidth>
struct Tile {
  float* data;
  __device__ __forceinline__ float* at(int row, int column) const {
    const int mask = row % 2 * 4 + row / 2 % 4;
    return data + row * kWidth + ((column / 4) ^ mask) * 4 + column % 4;
  }
  __device__ __forceinline__ Operand operand(int row, int column) const {
    return split(*reinterpret_cast<const float4*>(at(row, column)));
  }
};
using KeyTile = Tile<kKeyDim>;
using ChunkTile = Tile<kChunk>;

// The rows of q or k of a chunk for a key head; rows past its end become zeros.
__device__ __forceinline__ void load_rows(const KeyTile& to, const ConstView& view, int first, int count,
                                          int64_t key_head, bool aligned) {
  const auto* head = static_cast<const float*>(view.data) + first * view.stride + key_head * kKeyDim;
  for (int i = threadIdx.x; i < kChunk * kKeyDim / 4; i += blockDim.x) {
    const int row = i / (kKeyDim / 4), column = i % (kKeyDim / 4) * 4;
    const float* from = head + (row < count ? row * view.stride + column : 0);
    float* unit = to.at(row, column);
    if (aligned) {
      cuda::copy_async16(cuda::shared_address(unit), from, row < count);
    } else {
      *reinterpret_cast<float4*>(unit) = row < count ? float4{from[0], from[1], from[2], from[3]} : float4{};
    }
  }
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

// Column `column` of (I + a)^-1 by substitution; a is strictly lower triangular, its rows kInversePitch apart.
__device__ __forceinline__ void invert_column(const float* a, int column, float* inverse, int rows) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 part = *reinterpret_cast<const float4*>(a + i * kInversePitch + j);
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
__global__ void __launch_bounds__(kMatricesThreads, 2)
    delta_matrices(GatedDeltaDesc desc, GatedDeltaOp::Args args, Matrices matrices, bool aligned) {
  extern __shared__ __align__(16) float shared[];
  const KeyTile keys{shared}, queries{shared + kChunk * kKeyDim};
  float* a = shared + 2 * kChunk * kKeyDim;
  __shared__ double totals[kChunk];
  const int lane = threadIdx.x % 32, m = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int64_t head = blockIdx.y, key_head = head / (desc.value_heads / desc.key_heads);
  for (int index = blockIdx.x;; index += gridDim.x) {
    const PrefillPiece chunk = find_prefill_piece(args.batch, kChunk, index);
    if (chunk.count == 0) return;
    load_rows(keys, args.k, chunk.first, chunk.count, key_head, aligned);
    load_rows(queries, args.q, chunk.first, chunk.count, key_head, aligned);
    cuda::commit_copies();
    if (m == 0) add_gates(totals, args.g, chunk, head);
    cuda::wait_copies<0>();
    __syncthreads();
    const int rows[2] = {16 * m + g, 16 * m + g + 8};
    constexpr int kGroup = 4;  // tiles of 8 columns whose sums take turns
    float key_products[kChunk / 8 / kGroup][kGroup][4] = {}, query_products[kChunk / 8 / kGroup][kGroup][4] = {};
#pragma unroll 1
    for (int step = 0; step < kKeyDim / 16; ++step) {
      const int column = 16 * step + 4 * t;
      const Operand key[2] = {keys.operand(rows[0], column), keys.operand(rows[1], column)};
      const Operand query[2] = {queries.operand(rows[0], column), queries.operand(rows[1], column)};
#pragma unroll
      for (int n = 0; n < kChunk / 8; n += kGroup) {
        if (n > 2 * m + 1) break;
        Operand right[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) right[i] = keys.operand(8 * (n + i) + g, column);
        multiply(key_products[n / kGroup], key, right);
        multiply(query_products[n / kGroup], query, right);
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
        a[row * kInversePitch + column] =
            column < row && live ? beta * (key_products[n / kGroup][n % kGroup][i] * decay) : 0.0f;
        if (live)
          scores[row * kChunk + column] = column <= row ? query_products[n / kGroup][n % kGroup][i] * decay : 0.0f;
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
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* from = matrix + (row + 8 * h) * kChunk + 16 * step + 4 * t;
      rows[step][h] = row + 8 * h < count ? *reinterpret_cast<const float4*>(from) : float4{};
    }
  }
}

// acc[n] += rows x columns first + 8n .. + 7 of `right`, which has a row for each column.
__device__ __forceinline__ void multiply_triangle(float (&acc)[2][4], const float4 (&rows)[kChunk / 16][2],
                                                  const ChunkTile& right, int first, int m) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    if (step > m) break;
    const Operand left[2] = {split(rows[step][0]), split(rows[step][1])};
    const Operand columns[2] = {right.operand(first + g, 16 * step + 4 * t),
                                right.operand(first + 8 + g, 16 * step + 4 * t)};
    multiply(acc, left, columns);
  }
}

// Where a thread's elements of a [kChunk][kColumns] product lie: rows 16 m + g and + 8, columns 16 half + 8 n + 2 t.
struct Place {
  int m, half, g, t;
  __device__ __forceinline__ int row(int i) const { return 16 * m + g + i / 2 * 8; }
  __device__ __forceinline__ int column(int n, int i) const { return 16 * half + 8 * n + 2 * t + i % 2; }
};

// The factors of a thread's two rows, and of the state.
struct Gates {
  float opening[2], closing[2], beta[2], decay;
};
__device__ __forceinline__ Gates load_gates(const GatedDeltaOp::Args& args, const Matrices& matrices, int64_t head,
                                            int first, int count, const Place& place) {
  Gates gates;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = place.row(2 * h);
    const int64_t token = first + min(row, count - 1);
    gates.opening[h] = matrices.opening[matrices.row(head, token)];
    gates.closing[h] = matrices.closing[matrices.row(head, token)];
    gates.beta[h] = row < count ? static_cast<const float*>(args.beta.data)[token * args.beta.stride + head] : 0.0f;
  }
  gates.decay = matrices.opening[matrices.row(head, first + count - 1)];
  return gates;
}

// S: key dims 16 warp + g and + 8, columns 8 n + 2 t; to shared memory with a row for each column.
__device__ __forceinline__ void publish_state(const KeyTile& states, const float (&state)[kColumns / 8][4]) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *states.at(8 * n + 2 * t + i % 2, 16 * warp + g + i / 2 * 8) = state[n][i];
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    delta_chunks(GatedDeltaDesc desc, GatedDeltaOp::Args args, Matrices matrices, bool aligned, uint32_t* flags) {
  extern __shared__ __align__(16) float shared[];
  const KeyTile keys{shared}, queries{keys.data + kChunk * kKeyDim}, states{queries.data + kChunk * kKeyDim};
  const ChunkTile rest{states.data + kColumns * kKeyDim};  // R, then closing_i d_i; a row for each column
  const ChunkTile deltas{rest.data + kColumns * kChunk};   // D
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Place place{warp / 2, warp % 2, lane / 4, lane % 4};
  const int64_t head = blockIdx.y, key_head = head / (desc.value_heads / desc.key_heads), width = desc.value_dim;
  const int64_t first_column = blockIdx.x * kColumns;
  for (int index = blockIdx.z;; index += gridDim.z) {
    const PrefillPiece all = find_prefill_piece(args.batch, INT_MAX, index);
    if (all.count == 0) return;
    const int end = all.first + all.count;
    const auto chunk_length = [&](int first) {
      return min(end - first, kChunk - (args.batch.positions[all.first] + first - all.first) % kChunk);
    };
    int count = chunk_length(all.first);
    load_rows(queries, args.q, all.first, count, key_head, aligned);
    load_rows(keys, args.k, all.first, count, key_head, aligned);
    cuda::commit_copies();
    const int32_t read = args.batch.state_read[all.sequence];
    const int64_t offset = (head * kKeyDim + 16 * warp + place.g) * width + first_column + 2 * place.t;
    const float* before = args.state.delta + read * args.state.delta_stride + offset;
    float state[kColumns / 8][4];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] = read < 0 ? 0.0f : before[i / 2 * 8 * width + 8 * n + i % 2];
    }
    for (int first = all.first; first < end;) {
      const int next = first + count, next_count = next < end ? chunk_length(next) : 0;
      publish_state(states, state);
      float4 triangle[kChunk / 16][2];
      load_triangle(triangle, matrices.inverse + matrices.row(head, first) * kChunk, place.m, count);
      const Gates gates = load_gates(args, matrices, head, first, count, place);
      float values[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t token = first + min(place.row(i), count - 1);
          values[n][i] = cuda::to_float(static_cast<const cuda::Bf16Bits*>(
              args.v.data)[token * args.v.stride + head * width + first_column + place.column(n, i)]);
        }
      }
      cuda::wait_copies<0>();
      __syncthreads();  // q, k and the state are there; nobody reads rest and deltas
      float out[2][4] = {}, memory[2][4] = {};
#pragma unroll 2
      for (int step = 0; step < kKeyDim / 16; ++step) {
        const int at = 16 * step + 4 * place.t;
        const Operand query[2] = {queries.operand(place.row(0), at), queries.operand(place.row(2), at)};
        const Operand key[2] = {keys.operand(place.row(0), at), keys.operand(place.row(2), at)};
        const Operand columns[2] = {states.operand(16 * place.half + place.g, at),
                                    states.operand(16 * place.half + 8 + place.g, at)};
        multiply(memory, key, columns);
        multiply(out, query, columns);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *rest.at(place.column(n, i), place.row(i)) =
              gates.beta[i / 2] * (values[n][i] - gates.opening[i / 2] * memory[n][i]);
          out[n][i] *= gates.opening[i / 2];
        }
      }
      __syncthreads();  // R is there; nobody reads q and the state
      if (next_count > 0) load_rows(queries, args.q, next, next_count, key_head, aligned);
      float4 turned[kChunk / 16][2];  // rows of K^T
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        const int token = 16 * step + 4 * place.t;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = 16 * warp + place.g + 8 * h;
          turned[step][h] = {*keys.at(token, at), *keys.at(token + 1, at), *keys.at(token + 2, at),
                             *keys.at(token + 3, at)};
        }
      }
      float delta[2][4] = {};
      multiply_triangle(delta, triangle, rest, 16 * place.half, place.m);
      load_triangle(triangle, matrices.scores + matrices.row(head, first) * kChunk, place.m, count);
      __syncthreads();  // nobody reads R and k
      if (next_count > 0) load_rows(keys, args.k, next, next_count, key_head, aligned);
      cuda::commit_copies();
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *deltas.at(place.column(n, i), place.row(i)) = delta[n][i];
          *rest.at(place.column(n, i), place.row(i)) = gates.closing[i / 2] * delta[n][i];
        }
      }
      __syncthreads();  // D is there
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state[n][i] *= gates.decay;
      }
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        const Operand left[2] = {split(turned[step][0]), split(turned[step][1])};
        Operand columns[kColumns / 8];
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) columns[n] = rest.operand(8 * n + place.g, 16 * step + 4 * place.t);
        multiply(state, left, columns);
      }
      multiply_triangle(out, triangle, deltas, 16 * place.half, place.m);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (place.row(i) >= count) continue;
          static_cast<cuda::Bf16Bits*>(args.out.data)[(first + place.row(i)) * args.out.stride + head * width +
                                                      first_column + place.column(n, i)] = cuda::to_bf16(out[n][i]);
        }
      }
      first = next;
      count = next_count;
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

constexpr int kMatricesShared = (2 * kChunk * kKeyDim + kChunk * kInversePitch) * static_cast<int>(sizeof(float));
constexpr int kChunksShared =
    (2 * kChunk * kKeyDim + kColumns * (kKeyDim + 2 * kChunk)) * static_cast<int>(sizeof(float));
static_assert(kMatricesShared + kChunk * sizeof(double) <= 101376 && kChunksShared <= 101376);

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
  Workspace workspace(launch.workspace);
  const Matrices matrices = place(workspace, state.desc, tokens.total);
  const unsigned chunks = prefill_blocks(tokens, kChunk), heads = state.desc.value_heads;
  const unsigned sequences = std::min(static_cast<unsigned>(args.batch.sequences), chunks);
  const bool aligned = aligned_rows(args.q) && aligned_rows(args.k);
  cuda::launch("gated_delta cuda_chunk matrices", delta_matrices, dim3(chunks, heads), kMatricesThreads,
               kMatricesShared, launch.stream, state.desc, args, matrices, aligned);
  cuda::launch("gated_delta cuda_chunk", delta_chunks, dim3(state.desc.value_dim / kColumns, heads, sequences),
               kThreads, kChunksShared, launch.stream, state.desc, args, matrices, aligned,
               cuda_row::flag_word(launch));
}

size_t workspace_bytes(const GatedDeltaDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, bucket.tokens);
  return counted.used();
}

Result<PlanPtr<GatedDeltaOp>> make(const GatedDeltaDesc& desc, const Bucket& bucket, const NoWeights& weights,
                                   MakeContext& context) {
  constexpr auto kLimit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cuda::check(cudaFuncSetAttribute(delta_matrices, kLimit, kMatricesShared), "shared memory of gated_delta cuda_chunk");
  cuda::check(cudaFuncSetAttribute(delta_chunks, kLimit, kChunksShared), "shared memory of gated_delta cuda_chunk");
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
