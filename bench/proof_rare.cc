// How many repeats rare faults need: the measured rate of detection against the number of chains n.
//
//   proof_rare [--seeds N] > FILE
//
// Each fault strikes at random with a given probability. Prints JSON: by fault and n the share of seeds for which it
// was caught within n chains, and the share expected, 1 - (1 - p)^(n * chances of a chain). "A row that fails once in m
// runs" is caught with 95 % within 3 m / (runs of a chain) chains.
#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "fault.h"
#include "ops/attention/attention.h"
#include "ops/experts/experts.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "proof_study.h"
#include "sized_model.h"

namespace {

using namespace assay;
using nlohmann::json;

constexpr int kMostChains = 512;

struct Dice {
  ops::CaseRandom random{1};
  int64_t sides = 1;
  int64_t thrown = 0;
  bool strikes() {
    ++thrown;
    return random.below(sides) == 0;
  }
};

struct Rare {
  std::string name, op, chance;
  int64_t once_in;
  std::function<faults::Entry(std::shared_ptr<Dice>)> make;
};

template <class Op>
std::function<faults::Entry(std::shared_ptr<Dice>)> rare(std::function<void(faults::Run<Op>&, Dice&)> strike) {
  return [strike](std::shared_ptr<Dice> dice) {
    return faults::fault<Op>({"", [=](faults::Run<Op>& run) {
                                if (run.after) strike(run, *dice);
                              }});
  };
}

std::vector<Rare> rare_faults() {
  const auto element = rare<ops::LinearOp>([](auto& run, Dice& dice) {
    if (dice.strikes()) faults::nudge(run.args.y, 0, 3, 1);
  });
  const auto row = rare<ops::LinearOp>([](auto& run, Dice& dice) {
    for (int64_t t = 0; t < run.args.y.rows; ++t) {
      if (dice.strikes()) faults::scale(run.args.y.slice(t, 1), 1.5f);
    }
  });
  const auto expert = rare<ops::ExpertsOp>([](auto& run, Dice& dice) {
    if (dice.strikes()) faults::nudge(run.args.y, run.args.y.rows - 1, 0, 1);
  });
  const auto head = rare<ops::AttentionOp>([](auto& run, Dice& dice) {
    if (run.args.batch.sequences > 1 && dice.strikes()) faults::nudge(run.args.out, 0, 0, 1);
  });
  const auto state = rare<ops::GatedDeltaOp>([](auto& run, Dice& dice) {
    if (dice.strikes()) run.args.state.delta[run.args.batch.state_write[0] * run.args.state.delta_stride] += 1;
  });
  return {{"one element, one run in 50", "linear", "runs", 50, element},
          {"one element, one run in 500", "linear", "runs", 500, element},
          {"one row of outputs in 2000", "linear", "rows", 2000, row},
          {"one element, one run in 200", "experts", "runs", 200, expert},
          {"one element, one run in 200 of several sequences", "attention", "runs of several sequences", 200, head},
          {"one element of the state, one run in 200", "gated_delta", "runs", 200, state}};
}

// The model's first Desc of each op.
template <class Op>
void first_of(const ops::Instances& from, ops::Instances& to) {
  to.add<Op>(from.of<Op>().front());
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc == 3 && argv[1] == std::string_view("--seeds") ? std::atoi(argv[2]) : 20;
  faults::ModelSizes sizes;
  sizes.tokens = 64, sizes.sequences = 8;
  faults::SizedModel model(sizes, 1, 2);
  ops::Instances instances;
  instances.add<ops::LinearOp>(model.instances.of<ops::LinearOp>()[1]);
  first_of<ops::ExpertsOp>(model.instances, instances);
  first_of<ops::AttentionOp>(model.instances, instances);
  first_of<ops::GatedDeltaOp>(model.instances, instances);
  json list = json::array();
  for (const Rare& fault : rare_faults()) {
    std::vector<int> caught_at;  // chains, by seed; 0: not caught
    double per_chain = 0;
    std::map<std::string, int> kinds;
    for (int seed = 1; seed <= seeds; ++seed) {
      auto dice = std::make_shared<Dice>(Dice{ops::CaseRandom(static_cast<uint64_t>(seed) * 77), fault.once_in, 0});
      const faults::Entry entry = fault.make(dice);
      entry.install({});
      const proof::KernelOptions options{
          .repeats = kMostChains, .row_budget_ms = 0, .seed = static_cast<uint64_t>(seed)};
      for (const auto& verdict : bench::prove(instances, *model.device, model.weights, options, fault.op, "faulty")) {
        const bool failed = verdict.state == proof::State::kFailed;
        caught_at.push_back(failed ? verdict.repeats : 0);
        if (failed) ++kinds[std::string(ops::evidence_name(verdict.worst.kind))];
        per_chain = static_cast<double>(dice->thrown) / verdict.repeats;
      }
      entry.remove();
    }
    json rates = json::array();
    for (int n = 2; n <= kMostChains; n *= 2) {
      int caught = 0;
      for (int at : caught_at) caught += at != 0 && at <= n ? 1 : 0;
      const double expected = 1 - std::pow(1 - 1.0 / static_cast<double>(fault.once_in), n * per_chain);
      rates.push_back({{"n", n}, {"caught", static_cast<double>(caught) / seeds}, {"expected", expected}});
    }
    list.push_back({{"fault", fault.name},
                    {"op", fault.op},
                    {"once_in", fault.once_in},
                    {"chance", fault.chance},
                    {"chances_per_chain", per_chain},
                    {"caught_by", kinds},
                    {"rates", rates}});
    fmt::print(stderr, "{}: {}\n", fault.op, fault.name);
  }
  fmt::print("{}\n", json({{"seeds", seeds}, {"faults", list}}).dump(1));
  return 0;
}
