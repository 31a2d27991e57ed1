// Choosing among proven rows: the least predicted time, within the memory there is for packed weights.
//
// One row serves all phases of a Desc, so decode and verify tokens of a request meet the same order of additions. Rows
// within 3 % of the fastest count as equally fast: of those the earlier choice stays, so that a restart keeps its bits;
// without one the first of the list is taken. Nothing else enters: equal evidence gives equal choices.
//
// Where the packed weights of all choices do not fit, rows that need less take the place of chosen ones, the least loss
// of time per byte first. A packing that several Descs read is counted once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/weight.h"

namespace assay::proof {

constexpr double kHysteresis = 1.03;

struct Packing {
  ops::WeightId weight = ops::WeightId::kNone;
  ops::LayoutId layout = nullptr;
  size_t bytes = 0;
};

struct Candidate {
  std::string row;
  double microseconds = 0;  // predicted; infinity: never measured
  std::vector<Packing> packings;
};

// All rows of one Desc that may serve it, in the order of the list.
struct Contest {
  std::string earlier;  // choice of an earlier start; empty: none
  std::vector<Candidate> candidates;
};

struct Choice {
  size_t index = 0;                  // of the candidate
  std::vector<std::string> reasons;  // by candidate; "" of the chosen one
};

// One choice a contest; contests without candidates get an index of 0 and no reasons. memory_bytes 0: no limit. Where
// nothing fits, the smallest packings are chosen.
std::vector<Choice> choose(const std::vector<Contest>& contests, size_t memory_bytes);

}  // namespace assay::proof
