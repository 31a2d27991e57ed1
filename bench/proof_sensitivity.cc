// How small an error the proof sees: a factor of 1 + e on a part of the weights, by kind of evidence.
//
//   proof_sensitivity [--seeds N] > FILE
//
// Prints JSON: for each place, e and kind of evidence the share of seeds (weights, inputs and signs of their own) for
// which the error was over the bound, and the median of error over bound. The faulty row computes in fp64 and rounds
// once, or is the portable row with another global scale: nothing else is wrong with it.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "fault.h"
#include "numeric/decode.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "proof_study.h"
#include "sized_model.h"

namespace {

using namespace assay;
using faults::Fault;
using nlohmann::json;
using ops::ExpertsOp;
using ops::LinearOp;

constexpr int64_t kBlock = 16;

// Output rows [first, last) with 16 weights, of inputs [16 block, 16 block + 16), off by 1 + e.
Fault<LinearOp> block_fault(double e, int64_t block, int64_t first, int64_t last) {
  auto source = std::make_shared<ops::WeightSource>();
  const auto weights = [source](faults::OwnWeight& own, size_t) { *source = own.source; };
  const auto run = [=](faults::Run<LinearOp>& run) {
    const auto& desc = run.desc;
    const ops::ConstView& residual = run.args.residual;
    if (!run.after) {  // the residual may be where the output goes
      auto& kept = run.scratch.emplace_back();
      for (int64_t t = 0; residual && t < residual.rows; ++t) {
        for (int64_t n = 0; n < desc.n; ++n) kept.push_back(std::bit_cast<int32_t>(faults::get(residual, t, n)));
      }
      return;
    }
    std::vector<float> row(static_cast<size_t>(desc.k));
    int64_t n = 0;
    for (const auto& matrix : source->matrices) {
      for (int64_t r = 0; r < matrix.rows; ++r, ++n) {
        if (n < first || n >= last) continue;
        numeric::decode_row(matrix, r, row.data());
        for (int64_t t = 0; t < run.args.y.rows; ++t) {
          double sum = 0;
          for (int64_t k = 0; k < desc.k; ++k) {
            const double factor = k / kBlock == block ? 1 + e : 1;
            sum += factor * row[static_cast<size_t>(k)] * faults::get(run.args.x, t, k);
          }
          double value = ops::round_to_dtype(desc.output, sum);
          if (residual) value += std::bit_cast<float>(run.scratch[0][static_cast<size_t>(t * desc.n + n)]);
          faults::set(run.args.y, t, n, static_cast<float>(ops::round_to_dtype(desc.output, value)));
        }
      }
    }
  };
  return {"", run, weights};
}

Fault<LinearOp> part_fault(double e) {
  return {"", {}, [e](faults::OwnWeight& own, size_t) {
            own.source.matrices[0].global_scale *= static_cast<float>(1 + e);
          }};
}

// Matrices from, from + 1, .. of expert 1: gate, up, down.
Fault<ExpertsOp> expert_fault(double e, size_t matrix) {
  return {"", {}, [=](faults::OwnWeight& own, size_t) {
            own.source.matrices[3 + matrix].global_scale *= static_cast<float>(1 + e);
          }};
}

struct Place {
  std::string name, op;
  std::function<faults::Entry(double e)> fault;
};

std::vector<Place> places(const faults::ModelSizes& sizes) {
  const auto linear = [](auto make) { return [=](double e) { return faults::fault<LinearOp>(make(e)); }; };
  const auto experts = [](size_t matrix) {
    return [=](double e) { return faults::fault<ExpertsOp>(expert_fault(e, matrix)); };
  };
  const int64_t block = 3, row = sizes.fused / 3;
  return {{"one block of 16 weights", "linear", linear([=](double e) { return block_fault(e, block, row, row + 1); })},
          {"one block of 16 inputs, all outputs", "linear",
           linear([=](double e) { return block_fault(e, block, 0, sizes.fused); })},
          {"one half of a fused projection", "linear", linear(part_fault)},
          {"gate of one expert", "experts", experts(0)},
          {"up of one expert", "experts", experts(1)},
          {"down of one expert", "experts", experts(2)}};
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc == 3 && argv[1] == std::string_view("--seeds") ? std::atoi(argv[2]) : 8;
  faults::ModelSizes sizes;
  sizes.hidden = 512, sizes.fused = 384, sizes.intermediate = 128, sizes.experts = 8, sizes.tokens = 128;
  faults::SizedModel model(sizes, 1, 2);
  ops::Instances instances;  // the quantised projection and the experts
  for (const auto& instance : model.instances.of<LinearOp>()) {
    if (instance.desc.format == numeric::WeightFormat::kNvfp4) instances.add<LinearOp>(instance);
  }
  for (const auto& instance : model.instances.of<ExpertsOp>()) instances.add<ExpertsOp>(instance);
  const std::array kinds = {ops::Evidence::kIdentity, ops::Evidence::kSampled, ops::Evidence::kProjection};
  json points = json::array();
  for (const Place& place : places(sizes)) {
    for (int half_octave = -26; half_octave <= -2; ++half_octave) {
      const double e = std::exp2(half_octave / 2.0);
      std::vector<double> ratios[3];
      for (int seed = 0; seed < seeds; ++seed) {
        const faults::Entry entry = place.fault(seed % 2 == 0 ? e : -e);
        entry.install({});
        const proof::KernelOptions options{.repeats = 2, .row_budget_ms = 0, .seed = static_cast<uint64_t>(seed + 1)};
        for (const auto& verdict : bench::prove(instances, *model.device, model.weights, options, place.op, "faulty")) {
          for (size_t i = 0; i < kinds.size(); ++i) ratios[i].push_back(verdict.ratios[static_cast<size_t>(kinds[i])]);
        }
        entry.remove();
      }
      for (size_t i = 0; i < kinds.size(); ++i) {
        std::sort(ratios[i].begin(), ratios[i].end());
        const auto caught = std::count_if(ratios[i].begin(), ratios[i].end(), [](double r) { return !(r <= 1); });
        const double median = ratios[i][ratios[i].size() / 2];
        points.push_back({{"place", place.name},
                          {"op", place.op},
                          {"evidence", ops::evidence_name(kinds[i])},
                          {"e", e},
                          {"caught", static_cast<double>(caught) / static_cast<double>(ratios[i].size())},
                          {"error_over_bound", std::isfinite(median) ? json(median) : json("infinite")}});
      }
    }
    fmt::print(stderr, "{}\n", place.name);
  }
  const json result = {{"seeds", seeds},
                       {"projection", fmt::format("{} x {} nvfp4, bf16 activations", sizes.fused, sizes.hidden)},
                       {"experts", fmt::format("{} of {} x {}", sizes.experts, sizes.intermediate, sizes.hidden)},
                       {"points", points}};
  fmt::print("{}\n", result.dump(1));
  return 0;
}
