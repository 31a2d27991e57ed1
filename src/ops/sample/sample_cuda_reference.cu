// sample, the CUDA definition: one block a row, fp64 sums. A sorted prefix is the set of columns whose place (64 bits:
// the logit's order, then falling id) is at least some bound; bounds are found by bisection over the places, with
// counts and sums over the whole row each time. Workspace: one fp64 weight and one adjusted logit a row and
// column.
#include "ops/reference_cuda.cuh"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

constexpr int kThreads = 512;

// Places grow with the logit; equal logits: the lower id is the larger place.
__device__ uint64_t place(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  const uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
__device__ int id_of(uint64_t place) { return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(place)); }

// Combines one value a thread in the order of the threads; all threads get the result.
template <class T, class Combine>
__device__ T block_reduce(T value, Combine combine) {
  __shared__ T shared[kThreads];
  __syncthreads();
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + stride]);
    __syncthreads();
  }
  return shared[0];
}

struct Row {
  const float* logits;
  int count;  // real columns
  const double* weights;

  // Of the columns placed at `bound` or above.
  __device__ double sum_from(uint64_t bound) const {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) sum += place(logits[i], i) >= bound ? weights[i] : 0.0;
    return block_reduce(sum, [](double a, double b) { return a + b; });
  }
  __device__ int count_from(uint64_t bound) const {
    int found = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) found += place(logits[i], i) >= bound;
    return block_reduce(found, [](int a, int b) { return a + b; });
  }
  // The largest place below `bound`; 0: none.
  __device__ uint64_t next_below(uint64_t bound) const {
    uint64_t best = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const uint64_t mine = place(logits[i], i);
      if (mine < bound && mine > best) best = mine;
    }
    return block_reduce(best, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  // The smallest place of a column with at least this weight.
  __device__ uint64_t last_with(double weight) const {
    uint64_t least = ~uint64_t{0};
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const uint64_t mine = place(logits[i], i);
      if (weights[i] >= weight && mine < least) least = mine;
    }
    return block_reduce(least, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
  }
};

// The largest bound for which `holds`, which is false above and true below; 0 when it never holds.
template <class Predicate>
__device__ uint64_t largest_bound(Predicate holds) {
  uint64_t bound = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t candidate = bound | uint64_t{1} << bit;
    if (holds(candidate)) bound = candidate;
  }
  return bound;
}

__device__ int pick(const Row& row, const SampleParams& params, uint64_t first) {
  uint64_t kept = 0;
  if (params.top_k > 0) kept = largest_bound([&](uint64_t bound) { return row.count_from(bound) >= params.top_k; });
  if (params.top_p < 1) {
    const double wanted = params.top_p * row.sum_from(kept);
    const uint64_t prefix = largest_bound([&](uint64_t bound) { return row.sum_from(bound) >= wanted; });
    kept = prefix > kept ? prefix : kept;
  }
  if (params.min_p > 0) {
    const uint64_t prefix = row.last_with(params.min_p);
    kept = prefix > kept ? prefix : kept;
  }
  kept = kept > first ? first : kept;
  const double target = sample_uniform(params.seed, params.counter) * row.sum_from(kept);
  const uint64_t chosen = largest_bound([&](uint64_t bound) { return row.sum_from(bound) > target; });
  if (chosen >= kept && chosen != 0) return id_of(chosen);
  const uint64_t positive = row.last_with(4.9406564584124654e-324);
  return id_of(row.next_below(~uint64_t{0}) < positive ? first : (kept > positive ? kept : positive));
}

// The row's adjusted logits; every operation rounded by itself.
__device__ void adjust(const SampleDesc& desc, const SampleOp::Args& args, const SampleParams& params,
                       const float* logits, float* adjusted) {
  for (int i = threadIdx.x; i < desc.real_vocab; i += kThreads) {
    float logit = logits[i];
    for (int a = 0; a < params.adjustment_count; ++a) {
      const LogitAdjustment& change = args.adjustments[params.first_adjustment + a];
      if (change.token != i) continue;
      const float scaled = logit > 0 ? __fdiv_rn(logit, change.scale) : __fmul_rn(logit, change.scale);
      logit = __fadd_rn(scaled, change.add);
    }
    adjusted[i] = logit;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    sample(SampleDesc desc, SampleOp::Args args, double* all_weights, float* all_adjusted, uint32_t* flags) {
  const int64_t r = blockIdx.x;
  if (args.live != nullptr && r >= *args.live) return;
  const SampleParams params = args.params[r];
  SampleResult& result = args.results[r];
  double* weights = all_weights + r * desc.real_vocab;
  const Row row{static_cast<const float*>(args.logits.data) + r * args.logits.stride, desc.real_vocab, weights};
  bool bad = false, finite = false;
  double largest = -INFINITY;
  for (int i = threadIdx.x; i < desc.vocab; i += kThreads) {
    const float x = row.logits[i];
    bad = bad || isnan(x) || (isinf(x) && x > 0);
    finite = finite || (i < desc.real_vocab && isfinite(x));
    largest = x > largest ? x : largest;
  }
  bad = __syncthreads_or(bad) || !__syncthreads_or(finite);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxTopLogprobs; ++i) result.top_ids[i] = 0, result.top_logprobs[i] = 0;
    result.token = -1, result.logprob = 0, result.top_count = 0, result.numerical_error = bad;
  }
  flag(flags, Sentinel::kNonFiniteLogits, bad && threadIdx.x == 0);
  if (bad) return;
  largest = block_reduce(largest, [](double a, double b) { return a > b ? a : b; });
  double sum = 0;
  for (int i = threadIdx.x; i < desc.vocab; i += kThreads) sum += exp(row.logits[i] - largest);
  const double log_sum = largest + log(block_reduce(sum, [](double a, double b) { return a + b; }));
  const uint64_t first = row.next_below(~uint64_t{0});
  int token = params.target;
  if (token < 0) {
    float* adjusted = all_adjusted + r * desc.real_vocab;
    adjust(desc, args, params, row.logits, adjusted);
    const Row changed{adjusted, desc.real_vocab, weights};
    const uint64_t best = changed.next_below(~uint64_t{0});
    const double top = adjusted[id_of(best)];
    for (int i = threadIdx.x; i < desc.real_vocab; i += kThreads) {
      weights[i] = params.temperature > 0 ? exp((adjusted[i] - top) / params.temperature) : 0.0;
    }
    token = params.temperature > 0 ? pick(changed, params, best) : id_of(best);
  }
  const int most = min(kMaxTopLogprobs, desc.real_vocab), top_count = max(0, min(params.top_logprobs, most));
  uint64_t at = ~uint64_t{0};
  for (int i = 0; i < top_count; ++i) {
    at = row.next_below(at);
    if (threadIdx.x == 0) {
      result.top_ids[i] = id_of(at);
      result.top_logprobs[i] = static_cast<float>(row.logits[id_of(at)] - log_sum);
    }
  }
  if (threadIdx.x == 0) {
    result.token = token;
    result.logprob = static_cast<float>(row.logits[token] - log_sum);
    result.top_count = top_count;
  }
}

struct Buffers {
  double* weights = nullptr;
  float* adjusted = nullptr;
};

Buffers place_buffers(Workspace& workspace, const SampleDesc& desc, int64_t rows) {
  auto* weights = static_cast<double*>(workspace.take(DType::kF64, rows, desc.real_vocab).data);
  return {weights, static_cast<float*>(workspace.take(DType::kF32, rows, desc.real_vocab).data)};
}

void enqueue(const SampleDesc& desc, const SampleOp::Args& args, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Buffers buffers = place_buffers(workspace, desc, args.rows);
  cuda::launch("sample cuda_reference", sample, args.rows, kThreads, 0, launch.stream, desc, args, buffers.weights,
               buffers.adjusted, cuda_row::flag_word(launch));
}

size_t workspace_bytes(const SampleDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place_buffers(counted, desc, std::max(bucket.tokens, bucket.sequences));
  return counted.used();
}

}  // namespace

const Impl<SampleOp> kSampleCudaReference = {
    .name = "cuda_reference",
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
