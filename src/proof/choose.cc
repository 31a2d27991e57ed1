#include "proof/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace assay::proof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t fastest(const Contest& contest) {
  const std::vector<Candidate>& rows = contest.candidates;
  double least = kInfinity;
  for (const Candidate& row : rows) least = std::min(least, row.microseconds);
  const auto near = [&](const Candidate& row) { return row.microseconds <= least * kHysteresis; };
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].row == contest.earlier && near(rows[i])) return i;
  }
  return static_cast<size_t>(std::find_if(rows.begin(), rows.end(), near) - rows.begin());
}

// How much longer b takes than a, as a factor; 1 where neither was measured.
double slowdown(const Candidate& a, const Candidate& b) {
  return std::isinf(a.microseconds) && std::isinf(b.microseconds) ? 1 : b.microseconds / a.microseconds;
}

// How often each packing is asked for, and the bytes of all of them.
class Ledger {
 public:
  void add(const Candidate& row, int count) {
    for (const Packing& packing : row.packings) {
      int& uses = uses_[{packing.weight, packing.layout}];
      if (uses == 0) total_ += packing.bytes;
      uses += count;
      if (uses == 0) total_ -= packing.bytes;
    }
  }
  size_t total() const { return total_; }
  // With one row in place of another.
  size_t total_with(const Candidate& out, const Candidate& in) {
    add(in, 1);
    add(out, -1);
    const size_t with = total_;
    add(out, 1);
    add(in, -1);
    return with;
  }

 private:
  std::map<std::pair<ops::WeightId, ops::LayoutId>, int> uses_;
  size_t total_ = 0;
};

// One row less memory hungry than the chosen one of its contest, the cheapest in time per byte; false: there is none.
bool shrink(const std::vector<Contest>& contests, std::vector<Choice>& choices, Ledger& ledger) {
  size_t contest = 0, candidate = 0;
  double least = kInfinity;
  bool found = false;
  for (size_t c = 0; c < contests.size(); ++c) {
    const auto& rows = contests[c].candidates;
    for (size_t r = 0; r < rows.size(); ++r) {
      const Candidate& chosen = rows[choices[c].index];
      const size_t with = ledger.total_with(chosen, rows[r]);
      if (with >= ledger.total()) continue;
      const double loss =
          std::log(std::max(slowdown(chosen, rows[r]), 1.0)) / static_cast<double>(ledger.total() - with);
      if (found && loss >= least) continue;
      contest = c, candidate = r, least = loss, found = true;
    }
  }
  if (!found) return false;
  ledger.add(contests[contest].candidates[candidate], 1);
  ledger.add(contests[contest].candidates[choices[contest].index], -1);
  choices[contest].index = candidate;
  return true;
}

std::string reason(const Contest& contest, size_t chosen, size_t fast, size_t row) {
  const Candidate &taken = contest.candidates[chosen], &other = contest.candidates[row];
  if (chosen != fast && slowdown(taken, other) < 1) return "its packed weights do not fit beside the others'";
  if (std::isinf(other.microseconds)) return std::isinf(taken.microseconds) ? "later in the list" : "never measured";
  const double factor = slowdown(taken, other);
  if (factor > kHysteresis) return fmt::format("slower: {:.2f} times {}", factor, taken.row);
  return taken.row == contest.earlier ? "as fast within 3 %, and not the earlier choice"
                                      : "as fast within 3 %, and later in the list";
}

}  // namespace

std::vector<Choice> choose(const std::vector<Contest>& contests, size_t memory_bytes) {
  std::vector<Choice> choices(contests.size());
  std::vector<size_t> fast(contests.size());
  Ledger ledger;
  for (size_t c = 0; c < contests.size(); ++c) {
    if (contests[c].candidates.empty()) continue;
    fast[c] = choices[c].index = fastest(contests[c]);
    ledger.add(contests[c].candidates[choices[c].index], 1);
  }
  while (memory_bytes > 0 && ledger.total() > memory_bytes && shrink(contests, choices, ledger)) {
  }
  for (size_t c = 0; c < contests.size(); ++c) {
    for (size_t row = 0; row < contests[c].candidates.size(); ++row) {
      choices[c].reasons.push_back(row == choices[c].index ? "" : reason(contests[c], choices[c].index, fast[c], row));
    }
  }
  return choices;
}

}  // namespace assay::proof
