// The scheduler against FakeEngine under seeded random load: arrivals, lengths, cancels, scarce pages and slots, one to
// three steps in flight. Every number here comes from the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "scheduler/fake_engine.h"
#include "scheduler/scheduler.h"

namespace assay::scheduler {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 300;  // each is many times slower
#else
constexpr int kSeeds = 3000;
#endif
// What must have happened at least, of so many in 3,000 seeds.
constexpr int64_t at_least(int64_t of_all) { return of_all * kSeeds / 3000; }

struct Outcome {
  std::vector<ops::SampleResult> prompt_logprobs;
  int prompt_logprob_events = 0;
  std::vector<int32_t> tokens;
  int finishes = 0;
  FinishEvent finish;
};

// What happened over many seeds: a simulation that never met the hard cases shows nothing.
struct Coverage {
  int64_t preemptions = 0;
  int64_t shared_prompt_tokens = 0;
  int64_t verify_rows = 0;
  int64_t refused = 0;
  int64_t finished[kFinishReasons] = {};
  int64_t stops_with_rows_in_flight = 0;
  int64_t prompts_scored = 0;
  int64_t mixed_steps = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage& coverage) : random_(seed), coverage_(coverage) {
    engine::EngineLimits& limits = options_.limits;
    limits.context_tokens = between(20, 400);
    limits.max_step_tokens = one_of({64, 64, 65, 100, 256});
    limits.max_step_rows = one_of({1, 2, 5, 16});
    limits.max_step_outputs = one_of({1, 3, 64, 80, 128});
    limits.page_tokens = one_of({1, 4, 16, 64});
    limits.page_count = std::max(1, between(30, 700) / limits.page_tokens);
    limits.state_slots = one_of({0, 2, 3, 5, 9, 40});
    limits.max_in_flight = between(1, 3);
    limits.vocab_size = between(5, 1000);
    limits.max_step_adjustments = limits.vocab_size * one_of({1, 4});
    options_.eos_token = between(0, 4);
    options_.eos_every = one_of({0, 6, 30});
    options_.fault_prompt_token = 3;
    options_.fault_counter = between(0, 8);
    engine_ = std::make_unique<FakeEngine>(options_);
    scheduler_ = std::make_unique<Scheduler>(limits, one_of({1, 3, 8, 20}));
    to_add_ = between(4, 25);
  }

  void run() {
    const int add_one_in = one_of({1, 3, 20});
    const int cancel_one_in = one_of({0, 40, 200});
    deadlines_ = between(0, 2) == 0;
    while (to_add_ > 0 || scheduler_->open() > 0 || scheduler_->in_flight() > 0) {
      if (to_add_ > 0 && between(1, add_one_in) == 1) add();
      if (cancel_one_in > 0 && between(1, cancel_one_in) == 1) cancel();
      expire();
      submit();
      if (testing::Test::HasFatalFailure()) return;
      if (scheduler_->in_flight() > 0 && (!submitted_ || between(0, 1) == 0)) collect();
      check_balance();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler_->pages().used(), 0);
    EXPECT_EQ(scheduler_->slots().used(), 0);
    check_outcomes();
    coverage_.preemptions += scheduler_->preemptions();
    coverage_.shared_prompt_tokens += scheduler_->shared_prompt_tokens();
    coverage_.verify_rows += engine_->rows_run(engine::Phase::kVerify);
  }

  uint64_t trace() const { return trace_; }

 private:
  int between(int low, int high) { return low + static_cast<int>(random_() % (high - low + 1)); }
  int one_of(std::initializer_list<int> values) { return values.begin()[random_() % values.size()]; }

  void add() {
    --to_add_;
    Request request;
    const int most = one_of({3, 70, 200, options_.limits.context_tokens});
    for (int i = between(1, most); i > 0; --i) request.prompt.push_back(between(0, options_.limits.vocab_size - 1));
    request.max_tokens = one_of({0, 1, 2, 10, 60, 1000});
    if (between(0, 1)) request.stop_tokens = {options_.eos_token};
    request.temperature = static_cast<float>(between(0, 1));
    request.seed = random_();
    request.top_logprobs = between(0, 3);
    request.prompt_logprobs = between(0, 3) == 0;
    request.score_only = request.prompt_logprobs && between(0, 1);
    if (between(0, 3) == 0) request.presence_penalty = 0.5f;
    if (between(0, 3) == 0) request.frequency_penalty = -0.25f;
    if (between(0, 7) == 0) request.repetition_penalty = 1.25f;
    if (between(0, 3) == 0) request.min_tokens = between(1, 20);
    if (between(0, 3) == 0) request.logit_bias = {{between(0, options_.limits.vocab_size - 1), 2.0f}, {0, -1.0f}};
    if (request.logit_bias.size() == 2 && request.logit_bias[0].first == 0) request.logit_bias.pop_back();
    if (!check_request(request, options_.limits).ok()) {
      ++coverage_.refused;
      return;
    }
    if (deadlines_ && between(0, 1)) request.deadline_us = now_us_ + between(0, 300);
    const uint64_t leader = last_id_ + 1;
    for (int copies = between(0, 3) == 0 ? between(2, 6) : 1; copies > 0; --copies) {
      const uint64_t id = ++last_id_;
      requests_[id] = request;
      scheduler_->add(id, request, id == leader ? 0 : between(static_cast<int>(leader), static_cast<int>(id) - 1));
      request.seed = random_();
    }
  }

  void cancel() {
    if (last_id_ == 0) return;
    const uint64_t id = 1 + random_() % last_id_;
    const bool was_open = outcomes_[id].finishes == 0;
    const auto event = scheduler_->cancel(id);
    ASSERT_EQ(event.has_value(), was_open);
    if (event) take({&*event, 1});
  }

  // Time goes by in steps; nobody is overdue afterwards.
  void expire() {
    now_us_ += between(0, 10);
    take(scheduler_->expire(now_us_));
    if (!deadlines_) return;
    for (const auto& [id, request] : requests_) {
      const bool overdue = request.deadline_us != 0 && request.deadline_us <= now_us_;
      ASSERT_TRUE(!overdue || outcomes_[id].finishes == 1) << "request " << id << " is overdue";
    }
  }

  void submit() {
    const engine::Step* step = scheduler_->schedule();
    submitted_ = step != nullptr;
    if (!step) {
      ASSERT_TRUE(scheduler_->open() == 0 || scheduler_->in_flight() > 0) << "open requests, and nothing can run";
      return;
    }
    bool prefill = false, other = false, serves_earliest = false;
    const uint64_t earliest = earliest_open();
    for (const engine::StepRow& row : step->rows) {
      (row.phase == engine::Phase::kPrefill ? prefill : other) = true;
      serves_earliest = serves_earliest || row.sequence == earliest;
      EXPECT_EQ(outcomes_[row.sequence].finishes, 0) << "a row of a finished request";
      trace_ = trace_ * 1000003 + row.sequence * 31 + row.position * 7 + row.token_count + row.state_write;
    }
    for (const int32_t page : step->pages) trace_ = trace_ * 1000003 + page;
    coverage_.mixed_steps += prefill && other;
    // In turn with all others that run, and with all units; steps in flight can hold the pages and slots it needs.
    unserved_ = serves_earliest || earliest != last_earliest_ ? 0 : unserved_ + 1;
    last_earliest_ = earliest;
    ASSERT_LE(unserved_, 2 * scheduler_->max_running() + 2 * options_.limits.max_in_flight + 2)
        << "request " << earliest << " starves";
    engine_->submit(*step);
  }

  uint64_t earliest_open() {
    for (const auto& [id, request] : requests_) {
      if (outcomes_[id].finishes == 0) return id;
    }
    return 0;
  }

  void collect() {
    const engine::StepResult& result = engine_->collect();
    take(scheduler_->update(result));
  }

  void take(std::span<const Event> events) {
    for (const Event& event : events) {
      Outcome& outcome = outcomes_[event.id];
      EXPECT_EQ(outcome.finishes, 0) << "an event after the finish of " << event.id;
      if (const auto* prompt = std::get_if<PromptLogprobsEvent>(&event.what)) {
        EXPECT_TRUE(outcome.tokens.empty());
        ++outcome.prompt_logprob_events;
        outcome.prompt_logprobs.assign(prompt->results.begin(), prompt->results.end());
      } else if (const auto* token = std::get_if<TokenEvent>(&event.what)) {
        EXPECT_EQ(token->index, static_cast<int32_t>(outcome.tokens.size()));
        outcome.tokens.push_back(token->result.token);
      } else {
        ++outcome.finishes;
        outcome.finish = std::get<FinishEvent>(event.what);
        if (outcome.finish.reason == FinishReason::kStop && scheduler_->in_flight() > 0) {
          ++coverage_.stops_with_rows_in_flight;
        }
      }
    }
  }

  void check_balance() const {
    const state::PagePool& pages = scheduler_->pages();
    ASSERT_EQ(scheduler_->pages_held() + pages.free(), pages.total());
    const state::SlotPool& slots = scheduler_->slots();
    ASSERT_EQ(scheduler_->slots_held() + slots.free(), slots.total());
    ASSERT_LE(scheduler_->running(), scheduler_->max_running());
  }

  void check_outcomes() {
    for (const auto& [id, request] : requests_) {
      SCOPED_TRACE(testing::Message() << "request " << id);
      const Outcome& outcome = outcomes_[id];
      ASSERT_EQ(outcome.finishes, 1);
      const FakeGeneration solo = fake_generate(options_, request);
      ++coverage_.finished[static_cast<int>(outcome.finish.reason)];
      EXPECT_EQ(outcome.finish.prompt_tokens, static_cast<int32_t>(request.prompt.size()));
      EXPECT_EQ(outcome.finish.generated_tokens, static_cast<int32_t>(outcome.tokens.size()));
      const FinishReason reason = outcome.finish.reason;
      if (reason == FinishReason::kCancelled || reason == FinishReason::kDeadline) {
        ASSERT_LE(outcome.tokens.size(), solo.tokens.size());
        EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), solo.tokens.begin()));
      } else {
        EXPECT_EQ(outcome.tokens, solo.tokens);
        EXPECT_EQ(finish_reason_name(reason), finish_reason_name(solo.reason));
      }
      const bool reached_end = reason == FinishReason::kLength || reason == FinishReason::kStop;
      EXPECT_EQ(outcome.prompt_logprob_events,
                request.prompt_logprobs && (reached_end || !outcome.tokens.empty()) ? 1 : 0);
      if (outcome.prompt_logprob_events == 1) check_prompt_logprobs(request, outcome, solo);
    }
  }

  void check_prompt_logprobs(const Request& request, const Outcome& outcome, const FakeGeneration& solo) {
    ++coverage_.prompts_scored;
    ASSERT_EQ(outcome.prompt_logprobs.size(), request.prompt.size() - 1);
    for (size_t i = 0; i < outcome.prompt_logprobs.size(); ++i) {
      ASSERT_EQ(outcome.prompt_logprobs[i].token, request.prompt[i + 1]);
      ASSERT_EQ(outcome.prompt_logprobs[i].logprob, solo.prompt_logprobs[i].logprob);
      ASSERT_EQ(outcome.prompt_logprobs[i].top_count, solo.prompt_logprobs[i].top_count);
    }
  }

  std::mt19937_64 random_;
  Coverage& coverage_;
  FakeOptions options_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<uint64_t, Request> requests_;
  std::map<uint64_t, Outcome> outcomes_;
  uint64_t last_id_ = 0;
  int to_add_ = 0;
  bool deadlines_ = false;
  int64_t now_us_ = 1;
  bool submitted_ = false;
  uint64_t last_earliest_ = 0;
  int unserved_ = 0;
  uint64_t trace_ = 0;
};

TEST(Simulation, EveryRequestGetsTheTokensOfASoloRun) {
  Coverage coverage;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation(seed, coverage).run();
    if (HasFailure()) return;
  }
  EXPECT_GT(coverage.preemptions, at_least(500));
  EXPECT_GT(coverage.verify_rows, at_least(500));
  EXPECT_GT(coverage.shared_prompt_tokens, at_least(64 * 500));
  EXPECT_GT(coverage.mixed_steps, at_least(500));
  EXPECT_GT(coverage.stops_with_rows_in_flight, at_least(100));
  EXPECT_GT(coverage.prompts_scored, at_least(100));
  EXPECT_GT(coverage.refused, at_least(10));
  for (const int64_t count : coverage.finished) EXPECT_GT(count, at_least(50));
  RecordProperty("preemptions", std::to_string(coverage.preemptions));
  RecordProperty("requests",
                 std::to_string(std::accumulate(std::begin(coverage.finished), std::end(coverage.finished), 0L)));
  RecordProperty("shared_prompt_tokens", std::to_string(coverage.shared_prompt_tokens));
  RecordProperty("verify_rows", std::to_string(coverage.verify_rows));
}

TEST(Simulation, ASeedGivesTheSameSteps) {
  Coverage coverage;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulation first(seed, coverage), second(seed, coverage);
    first.run();
    second.run();
    EXPECT_EQ(first.trace(), second.trace()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace assay::scheduler
