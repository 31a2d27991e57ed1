// A long stretch of real serving on a tiny model with tiny pools: arrivals, cancels, deadlines, preemption and replay.
// Time is counted in steps. Every token and log-probability must be what the request gives alone, bit for bit; pages
// and slots must balance after every step.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "end_to_end/random_model.h"
#include "end_to_end/sequence_runner.h"
#include "engine/load.h"
#include "scheduler/scheduler.h"

namespace assay {
namespace {

using scheduler::FinishEvent;
using scheduler::FinishReason;
using scheduler::Request;
using scheduler::Scheduler;
using scheduler::TokenEvent;

constexpr int64_t kSteps = 100'000;
constexpr size_t kKinds = 150;  // different requests; each comes many times

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;

  void take(const TokenEvent& event) {
    tokens.push_back(event.result.token);
    logprobs.push_back(event.result.logprob);
  }
  bool starts_with(const Answer& other) const {
    return other.tokens.size() <= tokens.size() &&
           std::equal(other.tokens.begin(), other.tokens.end(), tokens.begin()) &&
           std::memcmp(other.logprobs.data(), logprobs.data(), other.logprobs.size() * sizeof(float)) == 0;
  }
};

class Serving {
 public:
  Serving() : model_(shape()) {
    engine::LoadOptions options;
    options.model_directory = model_.path();
    options.device = testing::test_device();
    options.max_sequences = 8;
    options.max_step_tokens = 96;
    options.context_tokens = 384;
    options.kv_cache_bytes = 7 * 16384;  // 7 pages of 64 positions: the longest request alone takes 6
    options.threads = 1;
    engine_ = engine::load(options).value();
    std::mt19937 random(11);
    for (size_t i = 0; i < kKinds; ++i) kinds_.push_back(random_request(random, i));
    for (const Request& request : kinds_) alone_.push_back(run_alone(request));
  }

  void run() {
    std::mt19937 random(12);
    Scheduler scheduler(engine_->limits(), 8);
    uint64_t next_id = 1;
    for (int64_t step = 0; step < kSteps; ++step) {
      if (scheduler.open() < 14 && random() % 4 == 0) {
        const size_t kind = random() % kKinds;
        Request request = kinds_[kind];
        if (random() % 8 == 0) request.deadline_us = step + 1 + static_cast<int64_t>(random() % 300);
        scheduler.add(next_id, std::move(request));
        open_[next_id++] = {kind, {}};
      }
      if (!open_.empty() && random() % 200 == 0) cancel(scheduler, random);
      for (const auto& event : scheduler.expire(step)) end(event.id, std::get<FinishEvent>(event.what));
      collect(scheduler, *engine_);
      ASSERT_EQ(scheduler.pages_held(), scheduler.pages().used());
      ASSERT_EQ(scheduler.slots_held(), scheduler.slots().used());
      ASSERT_EQ(wrong_, 0) << "step " << step;
    }
    while (scheduler.open() > 0) collect(scheduler, *engine_);
    EXPECT_EQ(scheduler.pages().used(), 0);
    EXPECT_EQ(scheduler.slots().used(), 0);
    EXPECT_EQ(wrong_, 0);
    EXPECT_GT(finished_, 1000);
    EXPECT_GT(cancelled_, 100);
    EXPECT_GT(overdue_, 100);
    EXPECT_GT(scheduler.preemptions(), 100);
    std::printf("%ld steps: %ld requests finished, %ld cancelled, %ld overdue, %ld preemptions\n",
                static_cast<long>(kSteps), static_cast<long>(finished_), static_cast<long>(cancelled_),
                static_cast<long>(overdue_), static_cast<long>(scheduler.preemptions()));
  }

 private:
  struct Open {
    size_t kind;
    Answer answer;
  };

  static testing::RandomModelShape shape() {
    testing::RandomModelShape shape;
    shape.seed = 3;
    return shape;
  }

  static Request random_request(std::mt19937& random, uint64_t seed) {
    Request request;
    request.prompt.resize(1 + random() % (random() % 5 == 0 ? 280 : 60));
    for (int32_t& id : request.prompt) id = static_cast<int32_t>(random() % 512);
    request.max_tokens = 1 + static_cast<int32_t>(random() % 160);
    request.temperature = random() % 3 == 0 ? 0.0f : 1.5f;
    request.seed = seed;
    return request;
  }

  Answer run_alone(const Request& request) {
    Scheduler scheduler(engine_->limits(), 1);
    scheduler.add(1, request);
    Answer answer;
    while (const engine::Step* step = scheduler.schedule()) {
      engine_->submit(*step);
      for (const auto& event : scheduler.update(engine_->collect())) {
        if (const auto* token = std::get_if<TokenEvent>(&event.what)) answer.take(*token);
      }
    }
    return answer;
  }

  void collect(Scheduler& scheduler, engine::Engine& engine) {
    const engine::Step* step = scheduler.schedule();
    if (step == nullptr) return;
    engine.submit(*step);
    for (const auto& event : scheduler.update(engine.collect())) {
      Open& open = open_.at(event.id);
      if (const auto* token = std::get_if<TokenEvent>(&event.what)) open.answer.take(*token);
      if (const auto* finish = std::get_if<FinishEvent>(&event.what)) end(event.id, *finish);
    }
  }

  void end(uint64_t id, const FinishEvent& finish) {
    const Open& open = open_.at(id);
    const Answer& wanted = alone_[open.kind];
    wrong_ += !wanted.starts_with(open.answer);
    if (finish.reason == FinishReason::kCancelled) {
      ++cancelled_;
    } else if (finish.reason == FinishReason::kDeadline) {
      ++overdue_;
    } else {
      ++finished_;
      wrong_ += open.answer.tokens.size() != wanted.tokens.size();
    }
    open_.erase(id);
  }

  void cancel(Scheduler& scheduler, std::mt19937& random) {
    auto victim = std::next(open_.begin(), static_cast<long>(random() % open_.size()));
    const uint64_t id = victim->first;
    if (const auto event = scheduler.cancel(id)) end(id, std::get<FinishEvent>(event->what));
  }

  testing::RandomModel model_;
  std::unique_ptr<engine::LocalEngine> engine_;
  std::vector<Request> kinds_;
  std::vector<Answer> alone_;
  std::map<uint64_t, Open> open_;
  int64_t wrong_ = 0;
  int64_t finished_ = 0;
  int64_t cancelled_ = 0;
  int64_t overdue_ = 0;
};

TEST(Serving, HundredThousandStepsGiveWhatEveryRequestGivesAlone) { Serving().run(); }

}  // namespace
}  // namespace assay
