// Tiny random checkpoints of every kind of config against transformers in float64 (tools/make_config_goldens.py).
//
// `f32` must agree with the goldens: mean NLL within 1e-4, every log-probability within 5e-4, greedy tokens wherever
// the golden's own margin decides, whichever rows run. bf16 activations are noise on random weights (transformers' own
// bf16 is up to 0.08 nats off its fp32 there), and with one other expert a token is another one: their mean NLL must
// stay within about three times the most seen, 0.010 nats for dense models and 0.075 for mixtures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "end_to_end/sequence_runner.h"

namespace assay {
namespace {

using engine::Phase;
using nlohmann::json;
using testing::RecordingTaps;
using testing::SequenceRunner;

constexpr char kDirectory[] = "tests/goldens/configs";
constexpr double kGreedyMargin = 0.02;  // nats
constexpr double kBf16MeanNllDense = 0.03;
constexpr double kBf16MeanNllMixture = 0.2;

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

engine::LoadOptions options_for(const std::string& directory, DType compute, const std::string& row) {
  engine::LoadOptions options;
  options.model_directory = directory;
  options.compute = compute;
  options.max_sequences = 1;
  if (!row.empty()) options.forced_rows = {{"*", row}};
  return options;
}

double log_probability(std::span<const float> logits, size_t token) {
  double largest = -INFINITY, sum = 0;
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  for (float logit : logits) sum += std::exp(logit - largest);
  return logits[token] - largest - std::log(sum);
}

struct Outcome {
  double mean_nll = 0;
  double worst_logprob = 0;
  int greedy_wrong = 0;
  int greedy_compared = 0;
};

// The text as prefill in pieces of one cut, then the golden's greedy tokens one by one as decode.
Outcome run(engine::LocalEngine& engine, const json& golden) {
  const std::vector<int32_t> ids = golden["ids"];
  const std::vector<int32_t> greedy = golden["greedy_ids"];
  RecordingTaps taps;
  engine.set_taps(&taps);
  SequenceRunner runner(engine);
  runner.run(ids, Phase::kPrefill, engine::kPrefillCut, 0);
  runner.run(std::span(greedy).first(greedy.size() - 1), Phase::kDecode, 1, 0);
  engine.set_taps(nullptr);
  const auto& logits = taps.site("logits", static_cast<int>(engine.config().num_layers));
  Outcome outcome;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const double got = log_probability(logits.row(i), static_cast<size_t>(ids[i + 1]));
    outcome.worst_logprob = std::max(outcome.worst_logprob, std::abs(got - golden["logprobs"][i].get<double>()));
    outcome.mean_nll -= got / static_cast<double>(ids.size() - 1);
    if (!std::isfinite(got)) outcome.worst_logprob = INFINITY;
  }
  for (size_t step = 0; step < greedy.size(); ++step) {
    if (golden["greedy_margins"][step].get<double>() <= kGreedyMargin) continue;
    const auto row = logits.row(ids.size() - 1 + step);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    ++outcome.greedy_compared;
    outcome.greedy_wrong += best != greedy[step];
  }
  return outcome;
}

Outcome run(const std::string& name, DType compute, const std::string& row) {
  const std::string directory = std::string(kDirectory) + "/" + name;
  auto engine = engine::load(options_for(directory, compute, row));
  if (!engine.ok()) {
    ADD_FAILURE() << name << ": " << engine.error().message();
    return {.mean_nll = INFINITY, .worst_logprob = INFINITY};
  }
  return run(**engine, read_json(directory + "/golden.json"));
}

class Configs : public ::testing::TestWithParam<std::string> {};

void expect_golden(const std::string& name, const std::string& row) {
  const json golden = read_json(std::string(kDirectory) + "/" + name + "/golden.json");
  const Outcome outcome = run(name, DType::kF32, row);
  std::printf("%-24s %-10s f32: mean NLL off by %.1e, a log-probability by at most %.1e\n", name.c_str(), row.c_str(),
              std::abs(outcome.mean_nll - golden["mean_nll"].get<double>()), outcome.worst_logprob);
  EXPECT_NEAR(outcome.mean_nll, golden["mean_nll"].get<double>(), 1e-4);
  EXPECT_LE(outcome.worst_logprob, 5e-4);
  EXPECT_EQ(outcome.greedy_wrong, 0);
  EXPECT_GE(outcome.greedy_compared, 16);
}

TEST_P(Configs, ChosenRowsInF32) { expect_golden(GetParam(), ""); }

TEST_P(Configs, ReferenceRowsInF32) { expect_golden(GetParam(), "reference"); }

TEST_P(Configs, DefaultBf16) {
  const json golden = read_json(std::string(kDirectory) + "/" + GetParam() + "/golden.json");
  for (const char* row : {"", "reference"}) {
    const Outcome outcome = run(GetParam(), DType::kBf16, row);
    std::printf("%-24s %-10s bf16: mean NLL off by %.1e, a log-probability by at most %.1e, %d of %d greedy tokens\n",
                GetParam().c_str(), row, std::abs(outcome.mean_nll - golden["mean_nll"].get<double>()),
                outcome.worst_logprob, outcome.greedy_compared - outcome.greedy_wrong, outcome.greedy_compared);
    EXPECT_TRUE(std::isfinite(outcome.worst_logprob));
    EXPECT_NEAR(outcome.mean_nll, golden["mean_nll"].get<double>(),
                GetParam().starts_with("moe") ? kBf16MeanNllMixture : kBf16MeanNllDense);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Configs, ::testing::ValuesIn(config_names()),
                         [](const auto& info) { return info.param; });

TEST(ConfigGoldens, AreAllThere) { EXPECT_GE(config_names().size(), 19u); }

}  // namespace
}  // namespace assay
