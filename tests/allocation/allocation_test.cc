// Memory is taken at load, as the ledger says, and by whoever submits a request: never by the engine thread.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <random>

#include "allocation/gpu_hook.h"
#include "allocation/malloc_hook.h"
#include "base/clock.h"
#include "end_to_end/random_model.h"
#include "end_to_end/sequence_runner.h"
#include "engine/load.h"
#include "scheduler/loop.h"

namespace assay {
namespace {

using scheduler::FinishReason;
using scheduler::Loop;
using scheduler::Request;

engine::LoadOptions small_options(const std::string& model) {
  engine::LoadOptions options;
  options.model_directory = model;
  options.max_sequences = 8;
  options.max_step_tokens = 96;
  options.context_tokens = 384;
  options.kv_cache_bytes = 9 * 16384;  // 9 pages of 64 positions: eight requests do not fit
  options.threads = 2;
  return options;
}

// Runs an engine, and has the thread that does so watched from its first step on.
class WatchedEngine : public engine::Engine {
 public:
  explicit WatchedEngine(engine::Engine& engine) : engine_(engine) {}
  const engine::EngineLimits& limits() const override { return engine_.limits(); }
  void submit(const engine::Step& step) override {
    if (!std::exchange(watching_, true)) testing::watch_this_thread();
    engine_.submit(step);
  }
  const engine::StepResult& collect() override { return engine_.collect(); }

 private:
  engine::Engine& engine_;
  bool watching_ = false;
};

// Counts what comes; allocates, as sinks may.
class CountingSink : public scheduler::RequestSink {
 public:
  void on_prompt_logprobs(std::span<const ops::SampleResult> results) override {
    prompt_results_.assign(results.begin(), results.end());
  }
  void on_token(const scheduler::TokenEvent& event) override { tokens_.push_back(event.result); }
  void on_finish(const scheduler::FinishEvent&) override {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  std::vector<ops::SampleResult> prompt_results_;
  std::vector<ops::SampleResult> tokens_;
};

class Traffic {
 public:
  explicit Traffic(Loop& loop) : loop_(loop) {}

  // Several requests with one prompt, of every kind that there is.
  void submit() {
    Request request;
    request.prompt.resize(1 + random_() % (random_() % 3 == 0 ? 250 : 70));
    for (int32_t& id : request.prompt) id = static_cast<int32_t>(random_() % 512);
    request.max_tokens = 1 + static_cast<int32_t>(random_() % 120);
    request.temperature = random_() % 2 == 0 ? 0.0f : 1.5f;
    request.top_logprobs = static_cast<int32_t>(random_() % 4);
    request.prompt_logprobs = random_() % 4 == 0;
    if (random_() % 2 == 0) request.stop_tokens = {static_cast<int32_t>(random_() % 512), 3};
    if (random_() % 3 == 0) request.presence_penalty = 0.5f;
    if (random_() % 3 == 0) request.frequency_penalty = 0.25f;
    if (random_() % 3 == 0) request.repetition_penalty = 1.5f;
    if (random_() % 3 == 0) request.logit_bias = {{5, 2.0f}, {400, -3.0f}};
    if (random_() % 3 == 0) request.min_tokens = 10;
    if (random_() % 5 == 0) request.deadline_us = now_us() + static_cast<int64_t>(random_() % 20'000);
    std::vector<scheduler::Submission> submissions;
    for (uint64_t copies = random_() % 3 == 0 ? 3 : 1; copies > 0; --copies) {
      request.seed = random_();
      sinks_.push_back(std::make_shared<CountingSink>());
      submissions.push_back({request, sinks_.back(), submissions.empty() ? -1 : 0});
    }
    const auto ids = loop_.submit_all(std::move(submissions));
    ASSERT_TRUE(ids.ok()) << ids.error().message();
    if (random_() % 4 == 0) loop_.cancel(ids->back());
  }

  void wait() {
    for (const auto& sink : sinks_) sink->wait();
  }

 private:
  Loop& loop_;
  std::mt19937_64 random_{31};
  std::vector<std::shared_ptr<CountingSink>> sinks_;
};

TEST(EngineThread, NeitherAllocatesNorReleases) {
  const testing::RandomModel model({.seed = 3});
  const auto engine = engine::load(small_options(model.path())).value();
  WatchedEngine watched(*engine);
  Loop loop(watched, {.max_queued = 200, .max_running = 8});
  for (int wave = 0; wave < 6; ++wave) {
    Traffic traffic(loop);
    for (int i = 0; i < 25; ++i) ASSERT_NO_FATAL_FAILURE(traffic.submit());
    traffic.wait();
  }
  ASSERT_TRUE(loop.drain(60'000'000));
  const scheduler::LoopStats stats = loop.stats();
  EXPECT_GT(stats.preemptions_total, 0);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled, FinishReason::kDeadline}) {
    EXPECT_GT(stats.requests_finished[static_cast<int>(reason)], 0) << finish_reason_name(reason);
  }
  EXPECT_EQ(stats.pages_used + stats.slots_used, 0);
  const testing::HeapUse use = testing::watched_heap_use();
  EXPECT_EQ(use.allocations, 0);
  EXPECT_EQ(use.releases, 0);
  if (use.allocations + use.releases > 0) testing::print_watched_heap_use();
}

TEST(Gpu, TakesNoMemoryAndPreparesNoGraphWhileServing) {
  if (testing::test_device() == "cpu") GTEST_SKIP() << "ASSAY_TEST_DEVICE names no GPU";
  const testing::RandomModel model({.seed = 3});
  engine::LoadOptions options = small_options(model.path());
  options.device = testing::test_device();
  const auto engine = engine::load(options).value();
  engine->warm_up();
  const std::string calls = testing::gpu_memory_calls();
  EXPECT_NE(calls, "");
  Loop loop(*engine, {.max_queued = 200, .max_running = 8});
  for (int wave = 0; wave < 6; ++wave) {
    Traffic traffic(loop);
    for (int i = 0; i < 25; ++i) ASSERT_NO_FATAL_FAILURE(traffic.submit());
    traffic.wait();
  }
  ASSERT_TRUE(loop.drain(60'000'000));
  EXPECT_EQ(testing::gpu_memory_calls(), calls);
}

// The hook itself: a watched thread that allocates is seen.
TEST(EngineThreadDeathTest, TheHookSeesAllocations) {
  EXPECT_EXIT(
      {
        testing::watch_this_thread();
        std::vector<int> memory(100);
        memory.resize(1000);
        const testing::HeapUse use = testing::watched_heap_use();
        std::_Exit(use.allocations == 2 && use.releases == 1 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// Each block is rounded up to 256 bytes.
void expect_ledger_is_what_was_allocated(const engine::LoadOptions& options) {
  const testing::DeviceUse before = testing::device_use();
  const auto engine = engine::load(options).value();
  const testing::DeviceUse after = testing::device_use();
  const int64_t wanted = engine->summary().ledger.total();
  EXPECT_GE(after.bytes - before.bytes, wanted);
  EXPECT_LT(after.bytes - before.bytes, wanted + 256 * (after.blocks - before.blocks));
  EXPECT_GT(wanted, 0);
}

TEST(Ledger, IsWhatIsAllocated) {
  const testing::RandomModel model({.seed = 3});
  engine::LoadOptions options = small_options(model.path());
  expect_ledger_is_what_was_allocated(options);
  options.compute = DType::kF32;
  options.kv_cache_bytes *= 2;
  expect_ledger_is_what_was_allocated(options);
  options.forced_rows = {{"*", "reference"}};
  expect_ledger_is_what_was_allocated(options);
}

// The proof packs weights for more rows than one; those not chosen are given back.
TEST(Ledger, IsWhatIsLeftAllocatedAfterAProof) {
  const testing::RandomModel model({.seed = 3});
  engine::LoadOptions options = small_options(model.path());
  options.proof.on = true;
  expect_ledger_is_what_was_allocated(options);
}

TEST(Ledger, IsMadeToFitOrRefused) {
  const testing::RandomModel model({.seed = 3});
  engine::LoadOptions options = small_options(model.path());
  std::vector<std::string> lines;
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  const int64_t all = engine::load(options).value()->summary().ledger.allowed_bytes;
  options.memory_utilization = 1e-9;
  const auto refused = engine::load(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResource);
  EXPECT_EQ(refused.error().what, "the model does not fit into memory");
  options.kv_cache_bytes = int64_t{1} << 40;
  options.context_tokens = 0;
  options.max_sequences = 512;
  options.memory_utilization = 0.9 * 12e6 / static_cast<double>(all);  // about 12 MB
  lines.clear();
  const auto fitted = engine::load(options);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message();
  const engine::Ledger& ledger = (*fitted)->summary().ledger;
  EXPECT_LE(ledger.total(), ledger.allowed_bytes);
  EXPECT_FALSE(ledger.changes.empty());
  for (const std::string& change : ledger.changes) {
    EXPECT_NE(std::find(lines.begin(), lines.end(), "changed to fit: " + change), lines.end()) << change;
  }
}

}  // namespace
}  // namespace assay
