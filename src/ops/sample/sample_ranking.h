// Ranking: columns of a row by falling logit (ties by rising id), as prefixes with the sum of their weights
// p = exp((logit - largest) / temperature). Columns are put into bins by logit, with the bins' sums; only the bin where
// a prefix ends is sorted.
//
// Weights are rounded to multiples of 2^-34 (by at most 2^-35, or 2^-22 of a weight above 2^-12), so that fp64 adds up
// to kRankingColumns of them exactly: a sum does not depend on its order, on bins, blocks, threads or lanes. Below
// 2^-35 they are zero.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"

namespace assay::ops {

inline constexpr int32_t kRankingColumns = 1 << 19;
inline constexpr float kRankingReach = 32;  // weights are zero from 25 temperatures below the largest logit

inline cpu::F4 rounded_weight(cpu::F4 weight) {
  constexpr float kRounder = 0x1.8p-11f;  // neighbours of sums with it are 2^-34 apart, or more above 2^-10
  return (weight + kRounder) - kRounder;
}

struct Candidate {
  float logit;
  int32_t id;
};
inline bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

class Ranking {
 public:
  struct Prefix {
    int32_t count = 0;
    double sum = 0;
    int32_t last = -1;  // id of its last column
  };
  static constexpr int32_t kPad = 3;  // columns are read four at a time

  // columns: those within `reach` temperatures of the largest logit and kPad of any content; members: as many, scratch.
  Ranking(const Candidate* columns, int32_t count, float largest, float temperature, float reach, Candidate* members)
      : columns_(columns),
        members_(members),
        count_(count),
        largest_(largest),
        temperature_(temperature),
        bins_per_offset_(-kBins / std::min(reach, 24.0f)) {
    for_each([&](const Candidate&, int32_t bin, float weight) {
      bins_[bin].sum += weight;
      ++bins_[bin].count;
    });
  }

  // The first `count` columns, or all.
  Prefix first(int32_t count) const {
    return shortest([=](const Prefix& prefix) { return prefix.count >= count; });
  }

  // The shortest prefix, of at least one column, whose weights add up to `sum` or more; all if none does.
  Prefix reaching(double sum) const {
    return shortest([=](const Prefix& prefix) { return prefix.sum >= sum; });
  }

  // How many columns have p >= least, before rounding.
  int32_t count_at_least(float least) const {
    int32_t count = 0;
    for (int32_t i = 0; i < count_; ++i) count += cpu::fast_exp(offset(columns_[i].logit)) >= least ? 1 : 0;
    return count;
  }

 private:
  static constexpr int32_t kBins = 256;
  struct Bin {
    double sum = 0;
    int32_t count = 0;
  };

  template <class Logits>
  Logits offset(Logits logits) const {
    return (logits - largest_) / temperature_;
  }

  // body(column, bin, weight)
  template <class Body>
  void for_each(const Body& body) const {
    for (int32_t i = 0; i < count_; i += 4) {
      const auto* pairs = reinterpret_cast<const float*>(columns_ + i);
      const cpu::F4 offsets = offset(__builtin_shufflevector(cpu::load4(pairs), cpu::load4(pairs + 4), 0, 2, 4, 6));
      const cpu::F4 weights = rounded_weight(cpu::fast_exp(offsets));
      const cpu::I4 bins =
          __builtin_convertvector(cpu::smaller(offsets * bins_per_offset_, cpu::broadcast(kBins - 1)), cpu::I4);
      const int32_t lanes = std::min(4, count_ - i);
      for (int32_t lane = 0; lane < lanes; ++lane) body(columns_[i + lane], bins[lane], weights[lane]);
    }
  }

  template <class Enough>
  Prefix shortest(const Enough& enough) const {
    Prefix prefix;
    for (int32_t bin = 0; bin < kBins; ++bin) {
      const Prefix next{prefix.count + bins_[bin].count, prefix.sum + bins_[bin].sum};
      if (enough(next)) return shortest_within(bin, prefix, enough);
      prefix = next;
    }
    return prefix;
  }

  // Ends in `bin`; the bins before it are `prefix`.
  template <class Enough>
  Prefix shortest_within(int32_t bin, Prefix prefix, const Enough& enough) const {
    Candidate* end = members_;
    for_each([&](const Candidate& column, int32_t own_bin, float) {
      *end = column;
      end += own_bin == bin ? 1 : 0;
    });
    std::sort(members_, end, before);
    for (const Candidate* member = members_; member < end; ++member) {
      prefix.sum += rounded_weight(cpu::fast_exp(cpu::broadcast(offset(member->logit))))[0];
      prefix.last = member->id;
      ++prefix.count;
      if (enough(prefix)) break;
    }
    return prefix;
  }

  const Candidate* columns_;
  Candidate* members_;
  int32_t count_;
  float largest_;
  float temperature_;
  float bins_per_offset_;
  Bin bins_[kBins];
};

}  // namespace assay::ops
