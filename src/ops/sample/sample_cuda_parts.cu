// sample: 64 blocks a row take the largest logit and the sum of exp over a part of the columns each; one block a row
// joins the parts in order. A greedy or scored row is then done: the logits are read once. A sampled row goes on in
// that block: bounds of the sorted prefix are found bit by bit, with a pass over the row (from L2) for each of 64 bits.
// Workspace: one record a row and part; a row's adjusted logits.
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/plan_cuda.h"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

constexpr int kParts = 64;
constexpr int kPartThreads = 256;
constexpr int kRowThreads = 1024;

// Columns in sorted order, first the largest: by the logit, then by falling id.
using Place = unsigned long long;

struct Part {
  Place best;  // of the real columns; 0: none finite
  float largest;
  float sum;  // of exp(logit - largest)
  uint32_t bad;
};

__device__ __forceinline__ Place place_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  const uint32_t order = static_cast<int32_t>(bits) < 0 ? ~bits : bits ^ 0x80000000u;
  return Place{order} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ int column_of(Place place) { return static_cast<int>(~static_cast<uint32_t>(place)); }

// Folds by halves in shared memory; every thread gets the result.
template <int kThreads, class T, class Fold>
__device__ T fold(T value, T* shared, Fold join) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();
  return result;
}

struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

__device__ __forceinline__ bool live(const SampleOp::Args& args, int row) {
  return args.live == nullptr || row < *args.live;
}

__global__ void __launch_bounds__(kPartThreads) sample_part(SampleDesc desc, SampleOp::Args args, Part* parts) {
  cuda::begin_overlapped();
  if (!live(args, blockIdx.y)) return;
  __shared__ Place places[kPartThreads];
  __shared__ float floats[kPartThreads];
  const int width = (desc.vocab + kParts - 1) / kParts;
  const int begin = blockIdx.x * width, end = min(desc.vocab, begin + width);
  const float* row = static_cast<const float*>(args.logits.data) + blockIdx.y * args.logits.stride;
  Place best = 0;
  float largest = -INFINITY, sum = 0.0f;
  bool bad = false;
#pragma unroll 8
  for (int i = begin + threadIdx.x; i < end; i += kPartThreads) {
    const float x = row[i];
    bad = bad || !(x < INFINITY);
    if (i < desc.real_vocab && isfinite(x)) best = Larger()(best, place_of(x, i));
    largest = fmaxf(largest, x);
  }
  bad = __syncthreads_or(bad);
  best = fold<kPartThreads>(best, places, Larger());
  largest = fold<kPartThreads>(largest, floats, Larger());
#pragma unroll 8
  for (int i = begin + threadIdx.x; i < end; i += kPartThreads) {
    const float x = row[i];
    sum += x > -INFINITY ? expf(x - largest) : 0.0f;
  }
  sum = fold<kPartThreads>(sum, floats, Sum());
  if (threadIdx.x == 0) parts[blockIdx.y * kParts + blockIdx.x] = {best, largest, sum, bad};
}

// One row in one block.
struct Row {
  const float* logits;
  int count;  // real columns
  float largest;
  float temperature;
  double* shared;

  __device__ double weight(int i) const { return expf((logits[i] - largest) / temperature); }
  __device__ double sum_from(Place bound) const {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += kRowThreads) sum += place_of(logits[i], i) >= bound ? weight(i) : 0.0;
    return fold<kRowThreads>(sum, shared, Sum());
  }
  __device__ int count_from(Place bound) const {
    int found = 0;
    for (int i = threadIdx.x; i < count; i += kRowThreads) found += place_of(logits[i], i) >= bound;
    return fold<kRowThreads>(found, reinterpret_cast<int*>(shared), Sum());
  }
  __device__ Place below(Place bound) const {
    Place best = 0;
    for (int i = threadIdx.x; i < count; i += kRowThreads) {
      const Place mine = place_of(logits[i], i);
      if (mine < bound) best = Larger()(best, mine);
    }
    return fold<kRowThreads>(best, reinterpret_cast<Place*>(shared), Larger());
  }
  // The last place whose weight is at least (or, for 0, above) `least`.
  __device__ Place last_heavy(double least) const {
    Place inverted = 0;
    for (int i = threadIdx.x; i < count; i += kRowThreads) {
      const double mine = weight(i);
      if (least > 0 ? mine >= least : mine > 0) inverted = Larger()(inverted, ~place_of(logits[i], i));
    }
    return ~fold<kRowThreads>(inverted, reinterpret_cast<Place*>(shared), Larger());
  }
};

// The largest bound at which `enough` holds; it fails above and holds below. 0: nowhere.
template <class Enough>
__device__ Place cut(Enough enough) {
  Place bound = 0;
  for (Place bit = Place{1} << 63; bit != 0; bit >>= 1) {
    if (enough(bound | bit)) bound |= bit;
  }
  return bound;
}

__device__ int draw(const Row& row, const SampleParams& params, Place first) {
  Place kept = 0;
  if (params.top_k > 0) kept = cut([&](Place bound) { return row.count_from(bound) >= params.top_k; });
  if (params.top_p < 1) {
    const double wanted = params.top_p * row.sum_from(kept);
    kept = Larger()(kept, cut([&](Place bound) { return row.sum_from(bound) >= wanted; }));
  }
  if (params.min_p > 0) kept = Larger()(kept, row.last_heavy(params.min_p));
  kept = kept > first ? first : kept;
  const double target = sample_uniform(params.seed, params.counter) * row.sum_from(kept);
  const Place chosen = cut([&](Place bound) { return row.sum_from(bound) > target; });
  if (chosen != 0 && chosen >= kept) return column_of(chosen);
  return column_of(Larger()(kept, row.last_heavy(0)));  // u * sum rounded up to the sum
}

// The row's adjusted logits, in `to`.
__device__ void adjust(const SampleDesc& desc, const SampleOp::Args& args, const SampleParams& params,
                       const float* logits, float* to) {
  for (int i = threadIdx.x; i < desc.real_vocab; i += kRowThreads) to[i] = logits[i];
  __syncthreads();
  for (int i = threadIdx.x; i < params.adjustment_count; i += kRowThreads) {
    const LogitAdjustment change = args.adjustments[params.first_adjustment + i];
    if (change.token >= desc.real_vocab) continue;
    const float logit = to[change.token];
    to[change.token] = (logit > 0.0f ? logit / change.scale : logit * change.scale) + change.add;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kRowThreads)
    sample_row(SampleDesc desc, SampleOp::Args args, const Part* all_parts, float* all_adjusted, uint32_t* flags) {
  cuda::begin_overlapped();
  __shared__ double shared[kRowThreads];
  __shared__ Part parts[kParts];
  const int r = blockIdx.x;
  if (!live(args, r)) return;
  if (threadIdx.x < kParts) parts[threadIdx.x] = all_parts[r * kParts + threadIdx.x];
  __syncthreads();
  const SampleParams params = args.params[r];
  SampleResult& result = args.results[r];
  Place first = 0;
  float largest = -INFINITY, sum = 0.0f;
  bool bad = false;
  for (int p = 0; p < kParts; ++p) {
    first = Larger()(first, parts[p].best);
    largest = fmaxf(largest, parts[p].largest);
    bad = bad || parts[p].bad != 0;
  }
  bad = bad || first == 0;
  for (int p = 0; p < kParts && !bad; ++p) sum += parts[p].sum * expf(parts[p].largest - largest);
  const int thread = threadIdx.x;
  if (thread < kMaxTopLogprobs) result.top_ids[thread] = 0, result.top_logprobs[thread] = 0.0f;
  if (bad) {
    if (thread == 0) {
      result.token = -1, result.logprob = 0.0f, result.numerical_error = 1, result.top_count = 0;
      if (flags != nullptr) atomicOr(flags, Sentinel::kNonFiniteLogits);
    }
    return;
  }
  const float log_sum = largest + logf(sum);
  const float* logits = static_cast<const float*>(args.logits.data) + r * args.logits.stride;
  int token = params.target >= 0 ? params.target : column_of(first);
  Row row{logits, desc.real_vocab, logits[column_of(first)], params.temperature, shared};
  if (params.target < 0 && params.adjustment_count > 0) {
    float* adjusted = all_adjusted + int64_t{r} * desc.real_vocab;
    adjust(desc, args, params, logits, adjusted);
    row.logits = adjusted;
    const Place best = row.below(~Place{0});
    row.largest = adjusted[column_of(best)];
    token = params.temperature > 0.0f ? draw(row, params, best) : column_of(best);
    row.logits = logits;
  } else if (params.target < 0 && params.temperature > 0.0f) {
    token = draw(row, params, first);
  }
  const int top = max(0, min(params.top_logprobs, min(kMaxTopLogprobs, desc.real_vocab)));
  Place place = first;
  for (int i = 0; i < top; ++i) {
    if (i > 0) place = row.below(place);
    if (thread != 0) continue;
    result.top_ids[i] = column_of(place);
    result.top_logprobs[i] = logits[column_of(place)] - log_sum;
  }
  if (thread == 0) {
    result.token = token;
    result.logprob = logits[token] - log_sum;
    result.numerical_error = 0;
    result.top_count = top;
  }
}

struct Buffers {
  Part* parts = nullptr;
  float* adjusted = nullptr;  // [rows, real_vocab]
};

Buffers place(Workspace& workspace, const SampleDesc& desc, int64_t rows) {
  const View parts = workspace.take(DType::kU8, rows, kParts * static_cast<int64_t>(sizeof(Part)));
  const View adjusted = workspace.take(DType::kF32, rows, desc.real_vocab);
  return {static_cast<Part*>(parts.data), static_cast<float*>(adjusted.data)};
}

void enqueue(const SampleDesc& desc, const SampleOp::Args& args, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Buffers buffers = place(workspace, desc, args.rows);
  cuda::launch("sample cuda_parts part", cuda::Start::kOverlap, sample_part, dim3(kParts, args.rows), kPartThreads, 0,
               launch.stream, desc, args, buffers.parts);
  cuda::launch("sample cuda_parts row", cuda::Start::kOverlap, sample_row, args.rows, kRowThreads, 0, launch.stream,
               desc, args, static_cast<const Part*>(buffers.parts), buffers.adjusted, cuda_row::flag_word(launch));
}

size_t workspace_bytes(const SampleDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, std::max(bucket.tokens, bucket.sequences));
  return counted.used();
}

}  // namespace

const Impl<SampleOp> kSampleCudaParts = {
    .name = "cuda_parts",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<SampleOp>,
    .layout = cuda_row::no_layout<SampleOp>,
    .can_run = refuse_sample,
    .workspace_bytes = workspace_bytes,
    .make = [](const SampleDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SampleOp>> {
      return cuda_row::make_plan<SampleOp, SampleDesc, enqueue>(desc);
    },
};

}  // namespace assay::ops
