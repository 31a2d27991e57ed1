// One device against another: the log-probabilities of pocket on a GPU and on the CPU.
#include <gtest/gtest.h>

#include "end_to_end/pocket_golden.h"

namespace assay {
namespace {

using testing::golden;
using testing::PromptLogits;

std::unique_ptr<engine::LocalEngine> load_pocket(const std::string& device) {
  engine::LoadOptions options;
  options.model_directory = testing::kPocket;
  options.device = device;
  options.max_sequences = 1;
  return engine::load(options).value();
}

struct Distance {
  double kl = 0, furthest = 0;  // sum over the tokens; of the golden's next token, in nats
  int64_t tokens = 0;
  void add(std::span<const float> cpu, std::span<const float> gpu, size_t token) {
    kl += testing::kl(cpu, gpu);
    furthest = std::max(furthest, std::abs(testing::log_softmax(cpu)[token] - testing::log_softmax(gpu)[token]));
    ++tokens;
  }
  double mean() const { return kl / static_cast<double>(tokens); }
};

// Both compute in bf16 and round in other places: each is the published noise away from fp32, and the divergence of two
// that err by themselves is the sum of theirs.
TEST(Devices, GpuGivesTheCpusLogProbabilitiesWithinTheNoiseFloor) {
  if (testing::test_device() == "cpu") GTEST_SKIP() << "ASSAY_TEST_DEVICE names no GPU";
  const auto cpu = load_pocket("cpu"), gpu = load_pocket(testing::test_device());
  Distance answers, stories;
  for (const auto& prompt : golden().prompts) {
    PromptLogits on_cpu, on_gpu;
    testing::run_prompt(*cpu, prompt, on_cpu);
    testing::run_prompt(*gpu, prompt, on_gpu);
    Distance& distance = prompt["id"].get<std::string>().starts_with("story") ? stories : answers;
    for (size_t step = 0; step < prompt["greedy_ids"].size(); ++step) {
      distance.add(on_cpu.greedy(step), on_gpu.greedy(step), prompt["greedy_ids"][step].get<size_t>());
    }
  }
  for (const auto& [name, distance] : {std::pair("answers", answers), std::pair("stories", stories)}) {
    std::printf("GPU against CPU, %s: mean KL %.2e, furthest log-probability %.1e nats apart, %ld tokens\n", name,
                distance.mean(), distance.furthest, static_cast<long>(distance.tokens));
  }
  EXPECT_GT(answers.tokens, 400);
  EXPECT_GT(stories.tokens, 200);
  EXPECT_LE(answers.mean(), 2 * testing::kNoiseOfAnswers);
  EXPECT_LE(stories.mean(), 2 * testing::kNoiseOfStories);
}

}  // namespace
}  // namespace assay
