// Ranking of a row's columns on a GPU, with the weights of sample_ranking.h bit for bit. Sums are counted in 2^-34,
// whole numbers, so that neither bins and blocks nor the order of atomic additions can enter.
//
// Columns are put into bins by logit; a block holds the first bins' columns sorted in shared memory, as many as fit,
// and a prefix that ends there is found by looking at them. One that ends in a later bin: that bin is cut into finer
// ones until its columns fit.
#pragma once

#include <cstdint>

namespace assay::ops::ranking {

constexpr int kBins = 512;
constexpr float kReach = 25.0f;  // in temperatures below the largest logit: weights are zero from here on
constexpr int kLastBin = kBins - 1;
constexpr int kHeld = 2048;

// Columns in sorted order, first the largest: by the logit, then by falling id. 0 is no column's.
using Place = unsigned long long;

__device__ __forceinline__ Place place_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  const uint32_t order = static_cast<int32_t>(bits) < 0 ? ~bits : bits ^ 0x80000000u;
  return Place{order} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ int column_of(Place place) { return static_cast<int>(~static_cast<uint32_t>(place)); }
__device__ __forceinline__ float logit_of(Place place) {
  const auto order = static_cast<uint32_t>(place >> 32);
  return __uint_as_float(static_cast<int32_t>(order) < 0 ? order ^ 0x80000000u : ~order);
}

// cpu::fast_exp (backend/cpu/exp.h), operation by operation.
__device__ __forceinline__ float host_exp(float x) {
  constexpr float kLimit = 105.0f, kRounder = 12582912.0f;
  x = fmaxf(-kLimit, fminf(kLimit, x));
  const float shifted = x * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r * r + r) + 1.0f;
  const int exponent = __float_as_int(shifted) - __float_as_int(kRounder), half = exponent >> 1;
  return p * __int_as_float((half + 127) << 23) * __int_as_float((exponent - half + 127) << 23);
}

// A weight rounded to 2^-34, in 2^-34.
using Weight = unsigned long long;
__device__ __forceinline__ Weight rounded_weight(float weight) {
  constexpr float kRounder = 0x1.8p-11f;
  return static_cast<Weight>(((weight + kRounder) - kRounder) * 0x1p34f);
}

struct Scale {
  float largest = 0;
  float temperature = 1;

  __device__ __forceinline__ float offset(float logit) const { return (logit - largest) / temperature; }
  __device__ __forceinline__ float exponential(float logit) const { return host_exp(offset(logit)); }
  __device__ __forceinline__ Weight weight(float logit) const { return rounded_weight(exponential(logit)); }
  // Rises as the logit falls.
  __device__ __forceinline__ static int bin_of_offset(float offset) {
    return static_cast<int>(fminf(offset * (-kLastBin / kReach), kLastBin));
  }
  __device__ __forceinline__ int bin(float logit) const { return bin_of_offset(offset(logit)); }
  // A logit that is certainly at or below all of the bins up to `bin`.
  __device__ __forceinline__ float below_bin(int bin) const {
    return largest - (static_cast<float>(bin) + 1.5f) * (kReach / kLastBin) * temperature;
  }
};

// Counts and sums of bins in shared memory. 32-bit limbs: at most 2^19 columns, whose weights are at most 2^34.
struct Tally {
  uint32_t count[kBins];
  uint32_t limbs[3][kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += blockDim.x) count[i] = limbs[0][i] = limbs[1][i] = limbs[2][i] = 0;
  }
  __device__ __forceinline__ void add(int bin, Weight weight) {
    atomicAdd(&count[bin], 1u);
    atomicAdd(&limbs[0][bin], static_cast<uint32_t>(weight) & 0xFFFu);
    atomicAdd(&limbs[1][bin], static_cast<uint32_t>(weight >> 12) & 0xFFFu);
    atomicAdd(&limbs[2][bin], static_cast<uint32_t>(weight >> 24));
  }
  __device__ __forceinline__ Weight sum(int bin) const {
    return Weight{limbs[0][bin]} + (Weight{limbs[1][bin]} << 12) + (Weight{limbs[2][bin]} << 24);
  }
};

// The last of the first bins that can be held together, by the running counts; -1: none.
template <int kThreads>
__device__ int last_head_bin(const uint32_t* count, int& found) {
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < kLastBin; i += kThreads) {
    if (count[i] <= kHeld && (i + 1 == kLastBin || count[i + 1] > kHeld)) found = i;
  }
  __syncthreads();
  return found;
}

struct Prefix {
  uint32_t count = 0;
  Weight weight = 0;
  Place last = 0;

  __device__ double sum() const { return static_cast<double>(weight) * 0x1p-34; }  // exact
};

// How far a prefix goes: to so many columns and so large a sum.
struct Goal {
  uint32_t count = 0;
  double sum = 0;

  __device__ bool reached(const Prefix& prefix) const { return prefix.count >= count && prefix.sum() >= sum; }
};

// Running sums of data[0, n), in place. n is at most kHeld; all threads call it.
template <int kThreads, class T>
__device__ void add_up(T* data, int n, T* totals) {
  constexpr int kEach = kHeld / kThreads;
  const int begin = kEach * static_cast<int>(threadIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = 0;
  for (int i = 0; i < kEach && begin + i < n; ++i) sum += data[begin + i];
  T running = sum;
  for (int step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(~0u, running, step);
    if (lane >= step) running += before;
  }
  if (lane == 31) totals[warp] = running;
  __syncthreads();
  running -= sum;
  for (int w = 0; w < warp; ++w) running += totals[w];
  for (int i = 0; i < kEach && begin + i < n; ++i) data[begin + i] = running += data[begin + i];
  __syncthreads();
}

// Sorts data[0, n) by falling value; n is a power of two.
template <int kThreads>
__device__ void sort_falling(Place* data, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = threadIdx.x; i < n / 2; i += kThreads) {
        const int low = 2 * i - (i & (stride - 1)), high = low + stride;
        const Place a = data[low], b = data[high];
        if ((a < b) == ((low & size) == 0)) data[low] = b, data[high] = a;
      }
      __syncthreads();
    }
  }
}

struct Shared {
  uint32_t count[kBins];  // of the columns in this bin and those before
  Weight sum[kBins];
  union {
    struct {
      Place places[kHeld];
      Weight sums[kHeld];  // running
    } held;
    struct {
      Tally tally;
      uint32_t count[kBins];
      Weight sum[kBins];
    } finer;
  };
  Weight totals[32];
  uint32_t count_totals[32];
  Place fold[32];
  uint32_t gathered;
  int found;
};

// Of one row, by one block; all threads call everything.
template <int kThreads>
class Ranking {
 public:
  // counts, sums: of the bins of the row; what the last one's columns weigh is nothing. head: the head's places.
  __device__ Ranking(const float* logits, int columns, Scale scale, const uint32_t* counts, const Weight* sums,
                     const Place* head, Shared& shared)
      : logits_(logits), columns_(columns), scale_(scale), head_(head), shared_(shared) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) {
      shared.count[i] = i < kLastBin ? counts[i] : 0;
      shared.sum[i] = i < kLastBin ? sums[i] : 0;
    }
    __syncthreads();
    add_up<kThreads>(shared.count, kBins, shared.count_totals);
    add_up<kThreads>(shared.sum, kBins, shared.totals);
    head_bin_ = last_head_bin<kThreads>(shared.count, shared.found);
  }

  // All columns that weigh something.
  __device__ Prefix all() const { return {shared_.count[kLastBin], shared_.sum[kLastBin], 0}; }

  // The shortest prefix, of at least one column, that reaches the goal; if none does all(), its last place unknown.
  __device__ __forceinline__ Prefix shortest(Goal goal) {
    const auto upto = [&](int bin) { return Prefix{shared_.count[bin], shared_.sum[bin]}; };
    const int bin =
        first_of(kLastBin, [&](int b) { return goal.reached(upto(b)) && (b == 0 || !goal.reached(upto(b - 1))); });
    if (bin < 0) return all();
    if (bin <= head_bin_) {
      hold_head();
    } else {
      hold_part_of(bin, goal);
    }
    const auto& held = shared_.held;
    const auto prefix = [&](int i) {
      return Prefix{before_.count + i + 1, before_.weight + held.sums[i], held.places[i]};
    };
    const int end =
        first_of(held_, [&](int i) { return goal.reached(prefix(i)) && (i == 0 || !goal.reached(prefix(i - 1))); });
    return prefix(end);
  }

  // The first `count` places, sorted; null where they are not at hand.
  __device__ const Place* leading(int count) {
    if (head_bin_ < 0 || static_cast<int>(shared_.count[head_bin_]) < count) return nullptr;
    hold_head();
    return shared_.held.places;
  }

 private:
  // Loads of many columns are under way together.
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    constexpr int kAhead = 16;
    for (int first = threadIdx.x; first < columns_; first += kAhead * kThreads) {
      float logits[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int column = first + i * kThreads;
        logits[i] = column < columns_ ? __ldg(logits_ + column) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int column = first + i * kThreads;
        if (column < columns_) body(logits[i], column);
      }
    }
  }

  // The index below n of which `is` holds; -1: none. It holds of at most one.
  template <class Is>
  __device__ int first_of(int n, const Is& is) const {
    __syncthreads();
    if (threadIdx.x == 0) shared_.found = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kThreads) {
      if (is(i)) shared_.found = i;
    }
    __syncthreads();
    return shared_.found;
  }

  template <class Join>
  __device__ Place fold(Place value, const Join& join) const {
    for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared_.fold[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared_.fold[0];
    for (int warp = 1; warp < kThreads / 32; ++warp) value = join(value, shared_.fold[warp]);
    return value;
  }

  __device__ void hold_head() {
    if (holds_head_) return;
    __syncthreads();
    held_ = static_cast<int>(shared_.count[head_bin_]);
    for (int i = threadIdx.x; i < held_; i += kThreads) shared_.held.places[i] = head_[i];
    sort_held();
    before_ = {};
    holds_head_ = true;
  }

  // Columns of a bin among which the prefix ends, as many as can be held.
  __device__ void hold_part_of(int bin, const Goal& goal) {
    holds_head_ = false;
    before_ = bin == 0 ? Prefix{} : Prefix{shared_.count[bin - 1], shared_.sum[bin - 1]};
    uint32_t members = shared_.count[bin] - before_.count;
    const float least = scale_.below_bin(bin), most = scale_.below_bin(bin - 3);
    Place low = 0, high = 0;
    bounds(low, high, [&](float logit, int) { return logit >= least && logit <= most && scale_.bin(logit) == bin; });
    auto& finer = shared_.finer;
    while (members > kHeld) {
      const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - 9);
      __syncthreads();
      finer.tally.clear();
      __syncthreads();
      for_each([&](float logit, int column) {
        const Place place = place_of(logit, column);
        if (place < low || place > high) return;
        finer.tally.add(static_cast<int>((high - place) >> shift), scale_.weight(logit));
      });
      __syncthreads();
      for (int i = threadIdx.x; i < kBins; i += kThreads) {
        finer.count[i] = finer.tally.count[i];
        finer.sum[i] = finer.tally.sum(i);
      }
      __syncthreads();
      add_up<kThreads>(finer.count, kBins, shared_.count_totals);
      add_up<kThreads>(finer.sum, kBins, shared_.totals);
      const auto upto = [&](int i) { return Prefix{before_.count + finer.count[i], before_.weight + finer.sum[i]}; };
      const int part =
          first_of(kBins, [&](int i) { return goal.reached(upto(i)) && (i == 0 || !goal.reached(upto(i - 1))); });
      members = finer.tally.count[part];
      if (part > 0) before_ = upto(part - 1);
      high -= Place(part) << shift;
      const Place width = (Place{1} << shift) - 1;
      if (high - low > width) low = high - width;
      const Place bottom = low, top = high;
      bounds(low, high, [&](float logit, int column) {
        const Place place = place_of(logit, column);
        return place >= bottom && place <= top;
      });
    }
    gather([&](float logit, int column) {
      const Place place = place_of(logit, column);
      return place >= low && place <= high;
    });
  }

  // The lowest and the highest place of the members.
  template <class Member>
  __device__ void bounds(Place& low, Place& high, const Member& member) const {
    Place least = ~Place{0}, most = 0;
    for_each([&](float logit, int column) {
      if (!member(logit, column)) return;
      const Place place = place_of(logit, column);
      least = min(least, place);
      most = max(most, place);
    });
    low = fold(least, [](Place a, Place b) { return min(a, b); });
    high = fold(most, [](Place a, Place b) { return max(a, b); });
  }

  // Holds the members, at most kHeld.
  template <class Member>
  __device__ void gather(const Member& member) {
    auto& held = shared_.held;
    __syncthreads();
    if (threadIdx.x == 0) shared_.gathered = 0;
    __syncthreads();
    for_each([&](float logit, int column) {
      if (member(logit, column)) held.places[atomicAdd(&shared_.gathered, 1u)] = place_of(logit, column);
    });
    __syncthreads();
    held_ = static_cast<int>(shared_.gathered);
    sort_held();
  }

  // Sorts the places held, and adds up their weights.
  __device__ void sort_held() {
    auto& held = shared_.held;
    int size = 2;
    while (size < held_) size *= 2;
    for (int i = held_ + threadIdx.x; i < size; i += kThreads) held.places[i] = 0;
    __syncthreads();
    sort_falling<kThreads>(held.places, size);
    for (int i = threadIdx.x; i < size; i += kThreads) {
      held.sums[i] = i < held_ ? scale_.weight(logit_of(held.places[i])) : 0;
    }
    __syncthreads();
    add_up<kThreads>(held.sums, size, shared_.totals);
  }

  const float* logits_;
  int columns_;
  Scale scale_;
  const Place* head_;
  Shared& shared_;
  int head_bin_ = -1;  // last_head_bin()
  bool holds_head_ = false;
  int held_ = 0;
  Prefix before_;  // what comes before the columns held
};

}  // namespace assay::ops::ranking
