// sample in three kernels. 64 blocks a row take the largest logit and the sum of exp over a part of the columns each,
// and make the adjusted logits. Where a row is drawn, or has alternatives, 64 more put their part's columns into bins
// of weight. One block a row joins the parts in order, and finds what it needs in the sorted columns of the first bins
// (sample_ranking_cuda.cuh): a draw reads the row once more from L2, twice or thrice where little is cut off.
//
// Bytes: the logits once, twice where a row is drawn. Bound: device memory; the exponentials of many drawn rows.
// Workspace: one record a row and part, a row's adjusted logits and bins.
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/plan_cuda.h"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_ranking_cuda.cuh"
#include "ops/sample/sample_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using ranking::column_of;
using ranking::logit_of;
using ranking::Place;
using ranking::place_of;
using ranking::Prefix;
using ranking::Scale;
using ranking::Weight;

constexpr int kParts = 64;
constexpr int kPartThreads = 256;
constexpr int kRowThreads = 512;
constexpr int kPartBins = ranking::kBins / kParts;  // that a part clears
constexpr int32_t kMostColumns = 1 << 19;           // whose weights fp64 adds up exactly

struct Part {
  Place best;      // of the real columns; 0: none finite
  Place adjusted;  // the same after adjustments
  float largest;
  float sum;  // of exp(logit - largest)
  uint32_t bad;
};

struct Buffers {
  Part* parts = nullptr;       // [rows, kParts]
  float* adjusted = nullptr;   // [rows, real_vocab]
  uint32_t* counts = nullptr;  // [rows, kBins]; the last one's place holds how many columns have p >= min_p
  Weight* sums = nullptr;      // [rows, kBins]
  Place* heads = nullptr;      // [rows, kHeld]
  uint32_t* held = nullptr;    // [rows] how many of those
};

Buffers place(Workspace& workspace, const SampleDesc& desc, int64_t rows) {
  const View parts = workspace.take(DType::kU8, rows, kParts * static_cast<int64_t>(sizeof(Part)));
  const View adjusted = workspace.take(DType::kF32, rows, desc.real_vocab);
  const View counts = workspace.take(DType::kI32, rows, ranking::kBins);
  const View sums = workspace.take(DType::kF64, rows, ranking::kBins);
  const View heads = workspace.take(DType::kF64, rows, ranking::kHeld);
  const View held = workspace.take(DType::kI32, 1, rows);
  return {static_cast<Part*>(parts.data),  static_cast<float*>(adjusted.data), static_cast<uint32_t*>(counts.data),
          static_cast<Weight*>(sums.data), static_cast<Place*>(heads.data),    static_cast<uint32_t*>(held.data)};
}

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

// What is wanted of a row.
struct Wish {
  bool adjusted = false;  // the token comes from adjusted logits
  bool drawn = false;
  int alternatives = 0;
  bool ranked = false;  // for the draw, or for alternatives beyond the first
  float temperature = 1;

  __device__ Wish(const SampleDesc& desc, const SampleParams& params) {
    adjusted = params.target < 0 && params.adjustment_count > 0;
    drawn = params.target < 0 && params.temperature > 0.0f && params.top_k != 1;
    alternatives = max(0, min(params.top_logprobs, min(kMaxTopLogprobs, desc.real_vocab)));
    ranked = drawn || alternatives > 1;
    if (drawn) temperature = params.temperature;
  }
  // Whether the logits ranked are the adjusted ones.
  __device__ bool ranks_adjusted() const { return drawn && adjusted; }
};

// The logits of the columns [begin, end) adjusted, in `to`.
__device__ void adjust(const SampleOp::Args& args, const SampleParams& params, const float* logits, float* to,
                       int begin, int end) {
  for (int i = begin + threadIdx.x; i < end; i += kPartThreads) to[i] = logits[i];
  __syncthreads();
  for (int i = threadIdx.x; i < params.adjustment_count; i += kPartThreads) {
    const LogitAdjustment change = args.adjustments[params.first_adjustment + i];
    if (change.token < begin || change.token >= end) continue;
    const float logit = to[change.token];
    to[change.token] = (logit > 0.0f ? logit / change.scale : logit * change.scale) + change.add;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kPartThreads) sample_part(SampleDesc desc, SampleOp::Args args, Buffers buffers) {
  cuda::begin_overlapped();
  const int r = blockIdx.y;
  if (!live(args, r)) return;
  __shared__ Place places[kPartThreads];
  __shared__ float floats[kPartThreads];
  const int width = (desc.vocab + kParts - 1) / kParts;
  const int begin = blockIdx.x * width, end = min(desc.vocab, begin + width), real_end = min(desc.real_vocab, end);
  const float* row = static_cast<const float*>(args.logits.data) + r * args.logits.stride;
  if (threadIdx.x < kPartBins) {
    const int64_t bin = int64_t{r} * ranking::kBins + blockIdx.x * kPartBins + threadIdx.x;
    buffers.counts[bin] = 0, buffers.sums[bin] = 0;
    buffers.held[r] = 0;
  }
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
  Place adjusted_best = best;
  const SampleParams params = args.params[r];
  if (Wish(desc, params).adjusted) {
    float* adjusted = buffers.adjusted + int64_t{r} * desc.real_vocab;
    adjust(args, params, row, adjusted, begin, real_end);
    adjusted_best = 0;
    for (int i = begin + threadIdx.x; i < real_end; i += kPartThreads) {
      adjusted_best = Larger()(adjusted_best, place_of(adjusted[i], i));
    }
    adjusted_best = fold<kPartThreads>(adjusted_best, places, Larger());
  }
  if (threadIdx.x == 0) buffers.parts[r * kParts + blockIdx.x] = {best, adjusted_best, largest, sum, bad};
}

// Of all parts.
struct Whole {
  Place best = 0;
  Place adjusted = 0;
  float largest = -INFINITY;
  bool bad = false;

  __device__ explicit Whole(const Part (&parts)[kParts]) {
    for (int p = 0; p < kParts; ++p) {
      best = Larger()(best, parts[p].best);
      adjusted = Larger()(adjusted, parts[p].adjusted);
      largest = fmaxf(largest, parts[p].largest);
      bad = bad || parts[p].bad != 0;
    }
    bad = bad || best == 0;
  }
};

// The logits that a row ranks, and their scale.
__device__ const float* ranked_logits(const SampleDesc& desc, const SampleOp::Args& args, const Buffers& buffers, int r,
                                      const Wish& wish) {
  if (wish.ranks_adjusted()) return buffers.adjusted + int64_t{r} * desc.real_vocab;
  return static_cast<const float*>(args.logits.data) + r * args.logits.stride;
}
__device__ Scale scale_of(const Whole& whole, const Wish& wish) {
  return {logit_of(wish.ranks_adjusted() ? whole.adjusted : whole.best), wish.temperature};
}

// The part of a row to be ranked that a block works on; all threads of the block make one.
struct RankedPart {
  const float* logits = nullptr;
  int begin = 0;
  int end = 0;
  Scale scale;
  bool wanted = false;

  __device__ RankedPart(const SampleDesc& desc, const SampleOp::Args& args, const Buffers& buffers, const Wish& wish,
                        Part (&parts)[kParts]) {
    const int r = blockIdx.y, width = (desc.vocab + kParts - 1) / kParts;
    if (threadIdx.x < kParts) parts[threadIdx.x] = buffers.parts[r * kParts + threadIdx.x];
    __syncthreads();
    const Whole whole(parts);
    wanted = wish.ranked && !whole.bad;
    scale = scale_of(whole, wish);
    logits = ranked_logits(desc, args, buffers, r, wish);
    begin = blockIdx.x * width;
    end = min(desc.real_vocab, begin + width);
  }
};

__global__ void __launch_bounds__(kPartThreads) sample_bins(SampleDesc desc, SampleOp::Args args, Buffers buffers) {
  cuda::begin_overlapped();
  const int r = blockIdx.y;
  if (!live(args, r)) return;
  const SampleParams params = args.params[r];
  const Wish wish(desc, params);
  if (!wish.ranked) return;
  __shared__ Part parts[kParts];
  __shared__ ranking::Tally tally;
  __shared__ uint32_t likely;
  tally.clear();
  if (threadIdx.x == 0) likely = 0;
  const RankedPart part(desc, args, buffers, wish, parts);
  if (!part.wanted) return;
  const bool limited = wish.drawn && params.min_p > 0;
  uint32_t mine = 0;
#pragma unroll 4
  for (int i = part.begin + threadIdx.x; i < part.end; i += kPartThreads) {
    const float offset = part.scale.offset(part.logits[i]);
    const int bin = Scale::bin_of_offset(offset);
    if (bin == ranking::kLastBin && !limited) continue;
    const float exponential = ranking::host_exp(offset);
    if (bin < ranking::kLastBin) tally.add(bin, ranking::rounded_weight(exponential));
    mine += limited && exponential >= params.min_p ? 1 : 0;
  }
  if (mine > 0) atomicAdd(&likely, mine);
  __syncthreads();
  uint32_t* counts = buffers.counts + int64_t{r} * ranking::kBins;
  for (int bin = threadIdx.x; bin < ranking::kLastBin; bin += kPartThreads) {
    if (tally.count[bin] == 0) continue;
    atomicAdd(&counts[bin], tally.count[bin]);
    atomicAdd(&buffers.sums[int64_t{r} * ranking::kBins + bin], tally.sum(bin));
  }
  if (threadIdx.x == 0 && likely > 0) atomicAdd(&counts[ranking::kLastBin], likely);
}

__global__ void __launch_bounds__(kPartThreads) sample_head(SampleDesc desc, SampleOp::Args args, Buffers buffers) {
  cuda::begin_overlapped();
  const int r = blockIdx.y;
  if (!live(args, r)) return;
  const Wish wish(desc, args.params[r]);
  if (!wish.ranked) return;
  __shared__ Part parts[kParts];
  __shared__ uint32_t count[ranking::kBins], totals[kPartThreads / 32];
  __shared__ Place places[ranking::kHeld];
  __shared__ uint32_t gathered, first;
  __shared__ int found;
  for (int i = threadIdx.x; i < ranking::kBins; i += kPartThreads) {
    count[i] = i < ranking::kLastBin ? buffers.counts[int64_t{r} * ranking::kBins + i] : 0;
  }
  if (threadIdx.x == 0) gathered = 0;
  const RankedPart part(desc, args, buffers, wish, parts);
  if (!part.wanted) return;
  ranking::add_up<kPartThreads>(count, ranking::kBins, totals);
  const int last = ranking::last_head_bin<kPartThreads>(count, found);
  if (last < 0) return;
  const float least = part.scale.below_bin(last);
#pragma unroll 4
  for (int i = part.begin + threadIdx.x; i < part.end; i += kPartThreads) {
    const float logit = part.logits[i];
    if (logit < least || part.scale.bin(logit) > last) continue;
    places[atomicAdd(&gathered, 1u)] = place_of(logit, i);
  }
  __syncthreads();
  if (threadIdx.x == 0) first = atomicAdd(&buffers.held[r], gathered);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < gathered; i += kPartThreads) {
    buffers.heads[int64_t{r} * ranking::kHeld + first + i] = places[i];
  }
}

using Ranking = ranking::Ranking<kRowThreads>;

// As Row::draw of sample_cpu_portable.cc: prefixes by top_k, top_p and min_p, then the one that ends with the token.
__device__ int draw(Ranking& ranking, const SampleParams& params, uint32_t likely) {
  Prefix kept = ranking.all(), prefix;
#pragma unroll 1  // shortest() is large
  for (int step = 0; step < 4; ++step) {
    ranking::Goal goal;
    if (step == 0) {
      if (params.top_k <= 0) continue;
      goal.count = params.top_k;
    } else if (step == 1) {
      if (!(params.top_p < 1)) continue;
      goal.sum = params.top_p * kept.sum();
    } else if (step == 2) {
      if (!(params.min_p > 0)) continue;
      goal.count = likely;  // columns with p >= min_p
    } else {
      // Below the sum also where u * sum rounds up to it.
      const double u = sample_uniform(params.seed, params.counter);
      goal.sum = nextafter(fmin(u * kept.sum(), nextafter(kept.sum(), 0.0)), kept.sum());
    }
    prefix = ranking.shortest(goal);
    if (prefix.count < kept.count) kept = prefix;
  }
  return column_of(prefix.last);
}

// The best place below `bound`, for alternatives that no ranking gives.
__device__ Place next_below(const float* logits, int count, Place bound, Place* shared) {
  Place best = 0;
  for (int i = threadIdx.x; i < count; i += kRowThreads) {
    const Place mine = place_of(logits[i], i);
    if (mine < bound) best = Larger()(best, mine);
  }
  return fold<kRowThreads>(best, shared, Larger());
}

__global__ void __launch_bounds__(kRowThreads, 1)
    sample_row(SampleDesc desc, SampleOp::Args args, Buffers buffers, uint32_t* flags) {
  cuda::begin_overlapped();
  const int r = blockIdx.x, thread = threadIdx.x;
  if (!live(args, r)) return;
  __shared__ ranking::Shared shared;
  __shared__ Part parts[kParts];
  if (thread < kParts) parts[thread] = buffers.parts[r * kParts + thread];
  __syncthreads();
  const SampleParams params = args.params[r];
  const Whole whole(parts);
  SampleResult& result = args.results[r];
  if (thread < kMaxTopLogprobs) result.top_ids[thread] = 0, result.top_logprobs[thread] = 0.0f;
  if (whole.bad) {
    if (thread == 0) {
      result.token = -1, result.logprob = 0.0f, result.numerical_error = 1, result.top_count = 0;
      if (flags != nullptr) atomicOr(flags, Sentinel::kNonFiniteLogits);
    }
    return;
  }
  float sum = 0.0f;
  for (int p = 0; p < kParts; ++p) sum += parts[p].sum * expf(parts[p].largest - whole.largest);
  const float log_sum = whole.largest + logf(sum);
  const Wish wish(desc, params);
  const float* logits = static_cast<const float*>(args.logits.data) + r * args.logits.stride;
  int token = params.target >= 0 ? params.target : column_of(whole.adjusted);
  const Place* leading = nullptr;
  if (wish.ranked) {
    const int64_t bins = int64_t{r} * ranking::kBins;
    Ranking ranking(ranked_logits(desc, args, buffers, r, wish), desc.real_vocab, scale_of(whole, wish),
                    buffers.counts + bins, buffers.sums + bins, buffers.heads + int64_t{r} * ranking::kHeld, shared);
    if (wish.drawn) token = draw(ranking, params, buffers.counts[bins + ranking::kLastBin]);
    if (wish.alternatives > 1 && !wish.ranks_adjusted()) leading = ranking.leading(wish.alternatives);
  }
  const auto alternative = [&](int i, Place place) {
    result.top_ids[i] = column_of(place);
    result.top_logprobs[i] = logits[column_of(place)] - log_sum;
  };
  if (leading != nullptr) {
    if (thread < wish.alternatives) alternative(thread, leading[thread]);
  } else {
    Place place = whole.best;
    for (int i = 0; i < wish.alternatives; ++i) {
      __syncthreads();
      if (i > 0) place = next_below(logits, desc.real_vocab, place, shared.held.places);
      if (thread == 0) alternative(i, place);
    }
  }
  if (thread == 0) {
    result.token = token;
    result.logprob = logits[token] - log_sum;
    result.numerical_error = 0;
    result.top_count = wish.alternatives;
  }
}

void enqueue(const SampleDesc& desc, const SampleOp::Args& args, const Launch& launch) {
  Workspace workspace(launch.workspace);
  const Buffers buffers = place(workspace, desc, args.rows);
  const dim3 all_parts(kParts, args.rows);
  cuda::launch("sample cuda_parts part", cuda::Start::kOverlap, sample_part, all_parts, kPartThreads, 0, launch.stream,
               desc, args, buffers);
  cuda::launch("sample cuda_parts bins", cuda::Start::kOverlap, sample_bins, all_parts, kPartThreads, 0, launch.stream,
               desc, args, buffers);
  cuda::launch("sample cuda_parts head", cuda::Start::kOverlap, sample_head, all_parts, kPartThreads, 0, launch.stream,
               desc, args, buffers);
  cuda::launch("sample cuda_parts row", cuda::Start::kOverlap, sample_row, args.rows, kRowThreads, 0, launch.stream,
               desc, args, buffers, cuda_row::flag_word(launch));
}

size_t workspace_bytes(const SampleDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  place(counted, desc, std::max(bucket.tokens, bucket.sequences));
  return counted.used();
}

Refusal can_run(const SampleDesc& desc, const DeviceCaps& caps) {
  if (desc.real_vocab > kMostColumns) return "more than 2^19 columns";
  return refuse_sample(desc, caps);
}

}  // namespace

const Impl<SampleOp> kSampleCudaParts = {
    .name = "cuda_parts",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<SampleOp>,
    .layout = cuda_row::no_layout<SampleOp>,
    .can_run = can_run,
    .workspace_bytes = workspace_bytes,
    .make = [](const SampleDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SampleOp>> {
      return cuda_row::make_plan<SampleOp, SampleDesc, enqueue>(desc);
    },
};

}  // namespace assay::ops
