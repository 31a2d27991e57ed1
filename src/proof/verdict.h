// Verdict: what the proof says about one row for one Desc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/cases.h"

namespace assay::proof {

enum class State : uint8_t {
  kPassed,
  kFailed,   // it ran and was wrong, crashed or hung: reason
  kRefused,  // it does not run this Desc on this device: reason
  kSkipped,  // it could run, and nobody needs it: reason
};
std::string_view state_name(State state);

// How long a row takes for one shape, least of several measurements.
struct Timing {
  int32_t tokens = 0;
  double microseconds = 0;
};

struct Verdict {
  std::string op;
  std::string desc;
  std::string row;
  ops::Bucket bucket;
  State state = State::kRefused;
  std::string reason;                                // why it failed or was refused
  ops::Found worst;                                  // largest error over bound
  std::array<double, ops::kEvidenceKinds> ratios{};  // the same by kind of evidence
  int32_t repeats = 0;                               // runs of every case that agreed bit for bit
  int64_t comparisons = 0;
  double milliseconds = 0;        // that the evidence took, without `cases_milliseconds`
  double cases_milliseconds = 0;  // that inputs and expected values took; the first row of a Desc makes them
  std::vector<Timing> timings;    // of a row that passed, fewest tokens first: what rows are chosen by
  uint64_t order = 0;             // id of the row's order of additions; 0: none promised
  uint64_t digest = 0;            // of all outputs of all cases: equal for rows of one order that ran the same cases
  std::string passed_over;        // of a row that passed: why another was chosen; empty: it was chosen, or nothing was
  bool light = false;             // the small shapes only: a slow row
  bool remembered = false;        // taken from a receipt
  bool untried = false;           // failed before it ran, by no fault of its own: no receipt keeps that
};

// Geometric mean of the timings, microseconds: a run of few tokens counts as much as one of many. Infinity without any.
double predicted_us(const Verdict& verdict);

struct ByDesc {
  std::string op, desc;
  bool operator<(const ByDesc& other) const { return op != other.op ? op < other.op : desc < other.desc; }
};

// Of rows with one order id, run on the same cases, the digests must be equal. Where two differ, the one that is
// earlier in the list fails: the later is the simpler. Verdicts are in the order of the rows.
void judge_orders(std::vector<Verdict>& verdicts);

// The table that people read.
std::string table(const std::vector<Verdict>& verdicts);

}  // namespace assay::proof
