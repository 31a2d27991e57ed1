#include "proof/verdict.h"

#include <cmath>
#include <limits>

namespace assay::proof {

std::string_view state_name(State state) {
  constexpr std::string_view kNames[] = {"passed", "failed", "refused", "skipped"};
  return kNames[static_cast<size_t>(state)];
}

double predicted_us(const Verdict& verdict) {
  if (verdict.timings.empty()) return std::numeric_limits<double>::infinity();
  double logarithms = 0;
  for (const Timing& timing : verdict.timings) logarithms += std::log(timing.microseconds);
  return std::exp(logarithms / static_cast<double>(verdict.timings.size()));
}

void judge_orders(std::vector<Verdict>& verdicts) {
  for (size_t i = 0; i < verdicts.size(); ++i) {
    Verdict& row = verdicts[i];
    for (size_t j = verdicts.size(); j-- > i + 1;) {
      const Verdict& other = verdicts[j];
      const bool comparable = row.state == State::kPassed && other.state == State::kPassed && row.op == other.op &&
                              row.desc == other.desc && row.order != 0 && row.order == other.order &&
                              row.light == other.light;
      if (!comparable || row.digest == other.digest) continue;
      row.state = State::kFailed;
      row.reason = "order: not bit for bit equal to " + other.row + ", which has the same order of additions";
      row.ratios[static_cast<size_t>(ops::Evidence::kOrder)] = std::numeric_limits<double>::infinity();
      row.worst = {std::numeric_limits<double>::infinity(), ops::Evidence::kOrder, row.reason, 0, 0, 0};
      break;
    }
  }
}

std::string table(const std::vector<Verdict>& verdicts) {
  std::string text = fmt::format("{:<13} {:<58} {:>7} {:<16} {:<8} {:>11} {:>4} {:>9} {:>7}\n", "op", "Desc", "tokens",
                                 "row", "verdict", "error/bound", "n", "row us", "ms");
  for (const Verdict& v : verdicts) {
    text += fmt::format("{:<13} {:<58} {:>7} {:<16} {:<8} ", v.op, v.desc, v.bucket.tokens, v.row, state_name(v.state));
    if (v.state == State::kPassed || v.state == State::kFailed) {
      const double us = predicted_us(v);
      text += fmt::format("{:>11.3f} {:>4} {:>9} {:>7.1f}{}", v.worst.ratio, v.repeats,
                          std::isfinite(us) ? fmt::format("{:.1f}", us) : "", v.milliseconds,
                          v.remembered ? " (receipt)" : "");
    }
    const std::string& why = v.state == State::kPassed ? v.passed_over : v.reason;
    text += why.empty() ? "\n" : "  " + why + "\n";
  }
  return text;
}

}  // namespace assay::proof
