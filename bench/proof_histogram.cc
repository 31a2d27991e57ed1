// How far healthy rows stay from their bounds: models of random sizes, random weights and inputs, every row proven.
//
//   proof_histogram [--runs N] [--first SEED] > FILE
//
// A run is one row proven for one Desc of one model. Prints JSON: runs, failures, a histogram of each run's largest
// error over bound by op, and the worst runs with the seed that repeats them.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "proof_study.h"
#include "sized_model.h"

namespace {

using namespace assay;
using nlohmann::json;

constexpr int kBins = 51;  // of 0.02: the last holds what is above 1
constexpr size_t kWorst = 20;

json found(const proof::Verdict& verdict, uint64_t seed) {
  return {{"seed", seed},
          {"op", verdict.op},
          {"desc", verdict.desc},
          {"row", verdict.row},
          {"error_over_bound", verdict.worst.ratio},
          {"evidence", ops::evidence_name(verdict.worst.kind)},
          {"where", verdict.worst.where},
          {"reason", verdict.reason}};
}

}  // namespace

int main(int argc, char** argv) {
  int64_t runs = 10'000;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--runs") runs = std::atoll(argv[i + 1]);
    if (flag == "--first") seed = static_cast<uint64_t>(std::atoll(argv[i + 1]));
  }
  std::map<std::string, std::array<int64_t, kBins>> bins;
  std::map<std::string, int64_t> rows;
  std::vector<std::pair<double, json>> worst;
  json failures = json::array();
  int64_t done = 0, models = 0, comparisons = 0;
  for (; done < runs; ++seed, ++models) {
    faults::SizedModel model(faults::ModelSizes::random(seed), seed, 2);
    const proof::KernelOptions options{.repeats = 2, .row_budget_ms = 0, .seed = seed};
    for (const proof::Verdict& verdict : bench::prove(model.instances, *model.device, model.weights, options, "", "")) {
      if (verdict.state == proof::State::kRefused) continue;
      ++done;
      ++rows[verdict.op + " " + verdict.row];
      comparisons += verdict.comparisons;
      if (verdict.state == proof::State::kFailed) failures.push_back(found(verdict, seed));
      const double ratio = verdict.worst.ratio;
      auto& histogram = bins[verdict.op];
      ++histogram[static_cast<size_t>(std::isfinite(ratio) ? std::min<double>(ratio / 0.02, kBins - 1) : kBins - 1)];
      worst.emplace_back(ratio, found(verdict, seed));
      std::sort(worst.begin(), worst.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
      if (worst.size() > kWorst) worst.pop_back();
    }
    if (models % 10 == 0) fmt::print(stderr, "{} of {} runs\n", done, runs);
  }
  json list = json::array();
  for (auto& [ratio, entry] : worst) list.push_back(std::move(entry));
  const json result = {
      {"runs", done},      {"models", models}, {"comparisons", comparisons}, {"failures", failures},
      {"bin_width", 0.02}, {"bins", bins},     {"runs_by_row", rows},        {"largest", list[0]["error_over_bound"]},
      {"worst", list}};
  fmt::print("{}\n", result.dump(1));
  return failures.empty() ? 0 : 1;
}
