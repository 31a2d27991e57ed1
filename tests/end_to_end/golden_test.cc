// pocket against Hugging Face: fp32 goldens of the dequantised weights (models/pocket/golden).
//
// `f32` is the oracle mode and must agree to 2e-3 in every logit; the default bf16 mode must stay within four times the
// published noise of computing in bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "end_to_end/pocket_golden.h"
#include "numeric/bf16.h"

namespace assay {
namespace {

using testing::golden;
using testing::kl;
using testing::kPocket;
using testing::log_softmax;
using testing::PromptLogits;
using testing::run_prompt;

constexpr double kGreedyMargin = 0.01;  // nats

std::unique_ptr<engine::LocalEngine> load_pocket(DType compute, const std::string& row) {
  engine::LoadOptions options;
  options.model_directory = kPocket;
  options.device = testing::test_device();
  options.compute = compute;
  options.max_sequences = 1;
  // Off the CPU the fast rows are whatever is chosen, and the definition has the backend's own row.
  const bool cpu = options.device == "cpu";
  if (!cpu && row == "reference") options.forced_rows = {{"*", "cuda_reference"}};
  if (cpu && !row.empty()) options.forced_rows = {{"*", row}};
  return engine::load(options).value();
}

// KL over the 20 tokens the golden lists and one bucket for all others: at most the full one.
double kl_top20(const nlohmann::json& top, std::span<const float> logits) {
  const auto got = log_softmax(logits);
  double sum = 0, wanted_rest = 1, got_rest = 1;
  for (size_t i = 0; i < top["ids"].size(); ++i) {
    const double wanted_lp = top["logprobs"][i];
    const double got_lp = got[top["ids"][i].get<size_t>()];
    sum += std::exp(wanted_lp) * (wanted_lp - got_lp);
    wanted_rest -= std::exp(wanted_lp);
    got_rest -= std::exp(got_lp);
  }
  // Below the goldens' five decimals the rest says nothing.
  if (wanted_rest > 1e-3 && got_rest > 0) sum += wanted_rest * std::log(wanted_rest / got_rest);
  return sum;
}

// Greedy tokens wherever the golden's own margin decides.
void expect_greedy(const nlohmann::json& prompt, PromptLogits& logits) {
  const auto& top = prompt["greedy_top20"];
  for (size_t step = 0; step < top.size(); ++step) {
    const double margin = top[step]["logprobs"][0].get<double>() - top[step]["logprobs"][1].get<double>();
    if (margin <= kGreedyMargin) continue;
    const auto row = logits.greedy(step);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    EXPECT_EQ(best, prompt["greedy_ids"][step].get<int64_t>())
        << prompt["id"] << " step " << step << " margin " << margin;
  }
}

struct Worst {
  double logit = 0;
  double kl = 0;
};

void check_f32_prompt(engine::LocalEngine& engine, size_t index, Worst& worst) {
  const auto& prompt = golden().prompts[index];
  PromptLogits logits;
  run_prompt(engine, prompt, logits);
  const auto wanted = golden().tensor("p" + std::to_string(index) + ".logits_last4");
  const size_t vocab = wanted.size() / 4;
  for (size_t r = 0; r < 4; ++r) {
    const auto want = wanted.subspan(r * vocab, vocab);
    const auto got = logits.last(r);
    for (size_t i = 0; i < vocab; ++i)
      worst.logit = std::max(worst.logit, std::abs(static_cast<double>(want[i]) - got[i]));
    worst.kl = std::max(worst.kl, kl(want, got));
  }
  expect_greedy(prompt, logits);
  if (index != 0) return;
  for (size_t layer = 0; layer < golden().router_top4.size(); ++layer) {
    const auto& site = logits.taps.site("router.ids", static_cast<int>(layer));
    const auto& tokens = golden().router_top4[layer];
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<int> ids(site.row(t).begin(), site.row(t).end());
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(ids, tokens[t].get<std::vector<int>>()) << "layer " << layer << " token " << t;
    }
  }
}

void check_f32_rows(const char* row) {
  const auto engine = load_pocket(DType::kF32, row);
  Worst worst;
  for (size_t i = 0; i < golden().prompts.size(); ++i) check_f32_prompt(*engine, i, worst);
  std::printf("%s f32: max logit difference %.2e, max KL %.2e\n", row, worst.logit, worst.kl);
  EXPECT_LE(worst.logit, 2e-3);
  EXPECT_LE(worst.kl, 1e-6);
}

TEST(Golden, PortableRowsInF32) { check_f32_rows("cpu_portable"); }

// Where an op has no such row, its first that can run.
TEST(Golden, VectorRowsInF32) {
  const device::CpuFeatures cpu = cpu::detect_features();
  if (!cpu.avx2) GTEST_SKIP() << "the CPU has no AVX2";
  check_f32_rows("cpu_avx2");
  if (cpu.avx512) check_f32_rows("cpu_avx512");
}

TEST(Golden, ReferenceRowsInF32) {
  const auto engine = load_pocket(DType::kF32, "reference");
  Worst worst;
  int prompts = 0;
  for (size_t i = 0; i < golden().prompts.size(); ++i) {
    if (golden().prompts[i]["input_ids"].size() > 200) continue;
    check_f32_prompt(*engine, i, worst);
    ++prompts;
  }
  std::printf("reference f32: %d prompts, max logit difference %.2e, max KL %.2e\n", prompts, worst.logit, worst.kl);
  EXPECT_GE(prompts, 15);
  EXPECT_LE(worst.logit, 2e-3);
  EXPECT_LE(worst.kl, 1e-6);
}

// Every layer's output of prompt 0, so that a failure above names its layer.
TEST(Golden, HiddenStatesOfPromptZero) {
  const auto engine = load_pocket(DType::kF32, "cpu_portable");
  PromptLogits logits;
  run_prompt(*engine, golden().prompts[0], logits);
  const auto compare = [&](const std::string& tensor, const std::string& site, int layer, size_t rows_wanted) {
    const auto wanted = golden().tensor(tensor);
    const auto& got = logits.taps.site(site, layer);
    ASSERT_GE(got.values.size(), wanted.size()) << tensor;
    ASSERT_EQ(wanted.size() / static_cast<size_t>(got.cols), rows_wanted) << tensor;
    double worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(wanted[i]) - got.values[i]));
    EXPECT_LE(worst, 1e-4) << tensor;
  };
  const size_t tokens = golden().prompts[0]["input_ids"].size();
  compare("p0.embed", "embed", 0, tokens);
  for (int layer = 0; layer < 6; ++layer) compare("p0.layer" + std::to_string(layer), "layer", layer, tokens);
}

// What rounding every input of a router logit by one bf16 step can do to it: 2^-8 sum_k |x_k W_ek|, of its two rivals.
class RouterSteps {
 public:
  RouterSteps() : checkpoint_(checkpoint::Checkpoint::open(kPocket).value()) {}

  double step(int layer, std::span<const float> x, size_t expert) const {
    const auto* gate = checkpoint_.find("model.layers." + std::to_string(layer) + ".mlp.gate.weight");
    const auto* row = reinterpret_cast<const uint16_t*>(gate->bytes.data()) + expert * x.size();
    double sum = 0;
    for (size_t k = 0; k < x.size(); ++k) sum += std::abs(static_cast<double>(x[k]) * numeric::bf16_to_float({row[k]}));
    return std::ldexp(sum, -8);
  }

 private:
  checkpoint::Checkpoint checkpoint_;
};

struct RouteCount {
  int64_t compared = 0;
  int64_t ties = 0;   // gap within one step: either choice is right
  int64_t flips = 0;  // of those, where bf16 chose otherwise
  int64_t after = 0;  // left out: the token took another expert in an earlier layer
};

// bf16 routes as fp32 does wherever fp32's gap between the k-th and the next logit exceeds one bf16 step. A token that
// took another expert looks different in all later layers and is left out of those.
void expect_same_routes(PromptLogits& f32, PromptLogits& bf16, int layers, const RouterSteps& steps,
                        RouteCount& count) {
  std::vector<bool> changed;
  for (int layer = 0; layer < layers; ++layer) {
    const auto& x = f32.taps.site("ffn_block.norm", layer);
    const auto& logits = f32.taps.site("router.logits", layer);
    const auto& wanted = f32.taps.site("router.ids", layer);
    const auto& got = bf16.taps.site("router.ids", layer);
    ASSERT_EQ(wanted.rows(), got.rows());
    changed.resize(wanted.rows());
    for (size_t t = 0; t < wanted.rows(); ++t) {
      if (changed[t]) {
        ++count.after;
        continue;
      }
      std::vector<size_t> order(static_cast<size_t>(logits.cols));
      std::iota(order.begin(), order.end(), size_t{0});
      const auto row = logits.row(t);
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
      const auto k = static_cast<size_t>(wanted.cols);
      const double gap = row[order[k - 1]] - row[order[k]];
      const bool tie = gap <= steps.step(layer, x.row(t), order[k - 1]) + steps.step(layer, x.row(t), order[k]);
      std::vector<float> a(wanted.row(t).begin(), wanted.row(t).end()), b(got.row(t).begin(), got.row(t).end());
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      if (!tie) {
        EXPECT_EQ(a, b) << "layer " << layer << " token " << t << " gap " << gap;
      }
      ++(tie ? count.ties : count.compared);
      if (a != b) {
        count.flips += tie;
        changed[t] = true;
      }
    }
  }
}

TEST(Golden, DefaultBf16StaysWithinTheNoiseFloor) {
  const auto f32 = load_pocket(DType::kF32, "");
  const auto bf16 = load_pocket(DType::kBf16, "");
  double sums[2] = {}, counts[2] = {};  // answers, stories
  const RouterSteps steps;
  RouteCount routes;
  for (size_t i = 0; i < golden().prompts.size(); ++i) {
    const auto& prompt = golden().prompts[i];
    PromptLogits oracle, logits;
    run_prompt(*f32, prompt, oracle);
    run_prompt(*bf16, prompt, logits);
    const int kind = prompt["id"].get<std::string>().starts_with("story") ? 1 : 0;
    const auto wanted = golden().tensor("p" + std::to_string(i) + ".logits_last4");
    const size_t vocab = wanted.size() / 4;
    for (size_t r = 0; r < 4; ++r) {
      if (kind == 0 && r < 3) continue;  // the prompt's own tokens are no answer
      sums[kind] += kl(wanted.subspan(r * vocab, vocab), logits.last(r));
      ++counts[kind];
    }
    for (size_t step = 1; step < prompt["greedy_top20"].size(); ++step) {
      sums[kind] += kl_top20(prompt["greedy_top20"][step], logits.greedy(step));
      ++counts[kind];
    }
    expect_same_routes(oracle, logits, static_cast<int>(f32->config().num_layers), steps, routes);
  }
  std::printf("bf16: mean KL answers %.2e (%g tokens), stories %.2e (%g tokens)\n", sums[0] / counts[0], counts[0],
              sums[1] / counts[1], counts[1]);
  std::printf("routes: %ld compared, %ld near ties of which %ld flipped, %ld after a flip\n",
              static_cast<long>(routes.compared), static_cast<long>(routes.ties), static_cast<long>(routes.flips),
              static_cast<long>(routes.after));
  EXPECT_LE(sums[0] / counts[0], 4 * testing::kNoiseOfAnswers);
  EXPECT_LE(sums[1] / counts[1], 4 * testing::kNoiseOfStories);
  EXPECT_GT(routes.compared, 1000);
}

}  // namespace
}  // namespace assay
