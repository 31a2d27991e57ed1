// A token's bits depend on its sequence alone: not on how prefill was cut, nor on who else is in the batch.
#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "end_to_end/random_model.h"
#include "end_to_end/sequence_runner.h"
#include "scheduler/loop.h"

namespace assay {
namespace {

using engine::Phase;
using testing::RandomModel;
using testing::RecordingTaps;
using testing::SequenceRunner;

std::vector<std::vector<int32_t>> story_prompts() {
  std::ifstream file("models/pocket/golden/golden.json");
  std::vector<std::vector<int32_t>> prompts;
  const auto golden = nlohmann::json::parse(file);
  for (const auto& prompt : golden["prompts"]) {
    if (prompt["id"].get<std::string>().starts_with("story")) prompts.push_back(prompt["input_ids"]);
  }
  return prompts;
}

std::unique_ptr<engine::LocalEngine> load(const std::string& directory, int32_t max_sequences) {
  engine::LoadOptions options;
  options.model_directory = directory;
  options.device = testing::test_device();
  options.max_sequences = max_sequences;
  return engine::load(options).value();
}

// The logits after prefill in pieces, and those of one decoded token after it.
std::vector<float> logits_after(engine::LocalEngine& engine, std::span<const int32_t> prompt, int32_t piece) {
  RecordingTaps taps;
  engine.set_taps(&taps);
  SequenceRunner runner(engine);
  runner.run(prompt, Phase::kPrefill, piece, prompt.size() - 1);
  const int32_t next[] = {prompt[0]};
  runner.run(next, Phase::kDecode, 1, 0);
  engine.set_taps(nullptr);
  return taps.site("logits", static_cast<int>(engine.config().num_layers)).values;
}

void expect_cuts_agree(engine::LocalEngine& engine, std::span<const int32_t> text, size_t longest) {
  for (size_t length = 1; length <= longest; ++length) {
    const auto prompt = text.first(length);
    const auto whole = logits_after(engine, prompt, 512);
    const auto cut = logits_after(engine, prompt, 64);
    ASSERT_EQ(whole.size(), cut.size());
    ASSERT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)), 0) << length << " tokens";
  }
}

TEST(Invariance, PrefillInOnePieceOrCut) {
  auto text = story_prompts().at(0);
  const auto more = story_prompts().at(1);
  text.insert(text.end(), more.begin(), more.end());
  const auto engine = load("models/pocket", 1);
  expect_cuts_agree(*engine, text, 200);
}

class Collector : public scheduler::RequestSink {
 public:
  void on_token(const scheduler::TokenEvent& event) override {
    tokens.push_back(event.result.token);
    logprobs.push_back(event.result.logprob);
  }
  void on_finish(const scheduler::FinishEvent&) override {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

scheduler::Request hot_request(std::vector<int32_t> prompt, uint64_t seed, int32_t tokens) {
  scheduler::Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.temperature = 1.5f;
  request.seed = seed;
  return request;
}

// Every request alone, then all 17 together: bit for bit the same tokens and log-probabilities.
void expect_company_changes_nothing(engine::LocalEngine& engine, const std::vector<scheduler::Request>& requests) {
  scheduler::Loop loop(engine, {});
  std::vector<std::shared_ptr<Collector>> alone, together;
  for (const auto& request : requests) {
    alone.push_back(std::make_shared<Collector>());
    ASSERT_TRUE(loop.submit(request, alone.back()).ok());
    alone.back()->wait();
  }
  for (const auto& request : requests) {
    together.push_back(std::make_shared<Collector>());
    ASSERT_TRUE(loop.submit(request, together.back()).ok());
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    together[i]->wait();
    EXPECT_EQ(together[i]->tokens, alone[i]->tokens) << "request " << i;
    ASSERT_EQ(together[i]->logprobs.size(), alone[i]->logprobs.size());
    EXPECT_EQ(
        std::memcmp(together[i]->logprobs.data(), alone[i]->logprobs.data(), alone[i]->logprobs.size() * sizeof(float)),
        0)
        << "request " << i;
    EXPECT_GE(alone[i]->tokens.size(), 8u);
  }
}

TEST(Invariance, AloneAndAmongSixteenOthersOnStories) {
  const auto engine = load("models/pocket", 32);
  const auto stories = story_prompts();
  std::vector<scheduler::Request> requests;
  for (size_t i = 0; i < 17; ++i) {
    auto prompt = stories[i % stories.size()];
    prompt.resize(prompt.size() - i);  // lengths differ, so chunks and batches never line up
    requests.push_back(hot_request(std::move(prompt), 1000 + i, 24 + static_cast<int32_t>(i)));
  }
  expect_company_changes_nothing(*engine, requests);
}

TEST(Invariance, AloneAndAmongSixteenOthersOnNearTiedLogits) {
  testing::RandomModelShape shape;
  shape.layers = 4;
  shape.head_scale = 1e-3f;
  const RandomModel model(shape);
  const auto engine = load(model.path(), 32);
  std::mt19937 random(5);
  std::vector<scheduler::Request> requests;
  for (size_t i = 0; i < 17; ++i) {
    std::vector<int32_t> prompt(1 + random() % 150);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 512);
    requests.push_back(hot_request(std::move(prompt), i, 40));
  }
  expect_company_changes_nothing(*engine, requests);
  std::vector<int32_t> text(130);
  for (int32_t& id : text) id = static_cast<int32_t>(random() % 512);
  expect_cuts_agree(*engine, text, text.size());
}

}  // namespace
}  // namespace assay
