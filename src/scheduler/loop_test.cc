#include "scheduler/loop.h"

#include <gtest/gtest.h>

#include <time.h>

#include <atomic>
#include <limits>
#include <semaphore>

#include "base/clock.h"
#include "scheduler/fake_engine.h"

namespace assay::scheduler {
namespace {

constexpr int64_t kPatienceUs = 20'000'000;  // a test that waits longer has failed

class RecordingSink : public RequestSink {
 public:
  void on_prompt_logprobs(std::span<const ops::SampleResult> results) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty());
    prompt_logprobs_ = results.size();
  }
  void on_token(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(finishes_, 0);
    EXPECT_EQ(event.index, static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(event.result.token);
    changed_.notify_all();
  }
  void on_finish(const FinishEvent& event) override {
    const std::lock_guard lock(mutex_);
    ++finishes_;
    finish_ = event;
    changed_.notify_all();
  }

  bool wait_for_tokens(size_t count) {
    return wait([&] { return tokens_.size() >= count || finishes_ > 0; });
  }
  bool wait_for_finish() {
    return wait([&] { return finishes_ > 0; });
  }
  std::vector<int32_t> tokens() const { return locked(tokens_); }
  int finishes() const { return locked(finishes_); }
  FinishEvent finish() const { return locked(finish_); }
  size_t prompt_logprobs() const { return locked(prompt_logprobs_); }

 private:
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  template <class Predicate>
  bool wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(kPatienceUs), predicate);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  int finishes_ = 0;
  FinishEvent finish_;
  size_t prompt_logprobs_ = 0;
};

Request request_of(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(Loop, DeliversTheTokensOfASoloRun) {
  FakeOptions options;
  options.limits.max_in_flight = 2;
  FakeEngine engine(options);
  Loop loop(engine, {});
  Request request = request_of({4, 5, 6}, 10);
  request.prompt_logprobs = true;
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(loop.submit(request, sink).ok());
  ASSERT_TRUE(sink->wait_for_finish());
  EXPECT_EQ(sink->tokens(), fake_generate(options, request).tokens);
  EXPECT_EQ(sink->prompt_logprobs(), 2u);
  EXPECT_EQ(sink->finish().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish().generated_tokens, 10);
  const LoopStats stats = loop.stats();
  EXPECT_EQ(stats.requests_total, 1);
  EXPECT_EQ(stats.requests_finished[static_cast<int>(FinishReason::kLength)], 1);
  EXPECT_EQ(stats.prompt_tokens_total, 3);
  EXPECT_EQ(stats.generation_tokens_total, 10);
  EXPECT_GE(stats.steps_total, 10);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

TEST(Loop, ServesManyThreads) {
  FakeOptions options;
  options.limits.max_in_flight = 2;
  options.limits.page_count = 24;  // less than the requests want: some are preempted
  options.eos_every = 40;
  FakeEngine engine(options);
  constexpr int kThreads = 6;
  constexpr int kRequests = 40;
  std::atomic<int> cancelled = 0;
  {
    Loop loop(engine, {.max_queued = kThreads * kRequests, .max_running = 10});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<std::pair<Request, std::shared_ptr<RecordingSink>>> mine;
        for (int i = 0; i < kRequests; ++i) {
          Request request = request_of({1 + thread, 1 + i, 77}, 60);
          request.prompt.resize(3 + (i * 37) % 120, 11);
          request.stop_tokens = {options.eos_token};
          mine.emplace_back(request, std::make_shared<RecordingSink>());
          const Result<uint64_t> id = loop.submit(request, mine.back().second);
          ASSERT_TRUE(id.ok());
          if (i % 5 == 4) loop.cancel(*id);
        }
        for (const auto& [request, sink] : mine) {
          ASSERT_TRUE(sink->wait_for_finish());
          if (sink->finish().reason == FinishReason::kCancelled) {
            ++cancelled;
          } else {
            EXPECT_EQ(sink->tokens(), fake_generate(options, request).tokens);
          }
        }
        for (const auto& [request, sink] : mine) EXPECT_EQ(sink->finishes(), 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(loop.drain(kPatienceUs));
    const LoopStats stats = loop.stats();
    EXPECT_EQ(stats.requests_total, kThreads * kRequests);
    EXPECT_EQ(stats.requests_finished[static_cast<int>(FinishReason::kCancelled)], cancelled);
    EXPECT_EQ(stats.pages_used, 0);
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_GT(stats.preemptions_total, 0);
  }
  EXPECT_LE(cancelled, kThreads * kRequests / 5);
}

// Collects a step when the test lets it, and says that one waits to be collected.
class GatedEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  const engine::StepResult& collect() override {
    waiting.release();
    gate.acquire();
    return FakeEngine::collect();
  }
  std::counting_semaphore<> waiting{0}, gate{0};
};

// The sink cancels its own request while a step is in flight: the token of that step is the last.
TEST(Loop, ACancelledRequestIsInNoStepAfterThoseInFlight) {
  class CancellingSink : public RecordingSink {
   public:
    void on_token(const TokenEvent& event) override {
      if (event.index == 4) {
        for (int step = 0; step < 6; ++step) engine->waiting.acquire();
        loop->cancel(1);
      }
      RecordingSink::on_token(event);
    }
    GatedEngine* engine = nullptr;
    Loop* loop = nullptr;
  };
  GatedEngine engine(FakeOptions{});
  const auto sink = std::make_shared<CancellingSink>();
  Loop loop(engine, {});
  sink->engine = &engine;
  sink->loop = &loop;
  ASSERT_EQ(*loop.submit(request_of({1, 2}, 0), sink), 1u);
  engine.gate.release(5);
  ASSERT_TRUE(sink->wait_for_tokens(5));
  engine.gate.release(100);
  ASSERT_TRUE(sink->wait_for_finish());
  EXPECT_EQ(sink->finish().reason, FinishReason::kCancelled);
  EXPECT_EQ(sink->tokens().size(), 6u);
  EXPECT_TRUE(loop.drain(kPatienceUs));
  EXPECT_EQ(loop.stats().steps_total, 6);
}

// One that runs and one that waits for its place.
TEST(Loop, EndsRequestsAtTheirDeadline) {
  FakeOptions options;
  options.latency_us = 1000;
  options.limits.context_tokens = 1 << 20;
  options.limits.page_count = 1 << 16;
  FakeEngine engine(options);
  Loop loop(engine, {.max_queued = 1, .max_running = 1});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  Request request = request_of({1, 2}, 0);
  request.deadline_us = now_us() + 20'000;
  for (int i = 0; i < 2; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(loop.submit(request, sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_for_finish());
    EXPECT_EQ(sink->finish().reason, FinishReason::kDeadline);
  }
  EXPECT_GE(now_us(), request.deadline_us);
  EXPECT_TRUE(loop.drain(kPatienceUs));
  EXPECT_EQ(loop.stats().requests_finished[static_cast<int>(FinishReason::kDeadline)], 2);
  EXPECT_EQ(loop.stats().pages_used, 0);
}

// A sink that does not return holds up nobody's steps until the list is full, and loses nothing.
TEST(Loop, GoesOnWhileASinkIsSlow) {
  class SlowSink : public RecordingSink {
   public:
    void on_token(const TokenEvent& event) override {
      if (event.index == 0) gate.acquire();
      RecordingSink::on_token(event);
    }
    std::binary_semaphore gate{0};
  };
  FakeOptions options;
  options.limits.context_tokens = 8192;
  options.limits.page_count = 1024;
  FakeEngine engine(options);
  Loop loop(engine, {});
  const auto sink = std::make_shared<SlowSink>();
  ASSERT_TRUE(loop.submit(request_of({1, 2}, 6000), sink).ok());
  while (loop.stats().generation_tokens_total < 4000) std::this_thread::yield();
  EXPECT_EQ(sink->tokens().size(), 0u);
  sink->gate.release();
  ASSERT_TRUE(sink->wait_for_finish());
  EXPECT_EQ(sink->tokens().size(), 6000u);
  EXPECT_TRUE(loop.drain(kPatienceUs));
}

TEST(Loop, TakesAQueueWithoutEnd) {
  FakeEngine engine({});
  Loop loop(engine, {.max_queued = std::numeric_limits<int32_t>::max(), .max_running = 4});
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(loop.submit(request_of({1}, 3), sink).ok());
  ASSERT_TRUE(sink->wait_for_finish());
  EXPECT_EQ(sink->tokens().size(), 3u);
}

TEST(Loop, RefusesWhatTheQueueCannotHold) {
  FakeOptions options;
  options.latency_us = 1000;
  FakeEngine engine(options);
  Loop loop(engine, {.max_queued = 2, .max_running = 1});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(loop.submit(request_of({1}, 500), sinks.back()).ok());
  }
  const auto refused_sink = std::make_shared<RecordingSink>();
  const Result<uint64_t> refused = loop.submit(request_of({1}, 500), refused_sink);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kResource);
  EXPECT_EQ(refused.error().got, "3 open requests");
  EXPECT_EQ(refused.error().wanted, "fewer than 3");
  EXPECT_EQ(loop.submit(request_of({}, 1), refused_sink).error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(loop.stats().requests_rejected, 2);
  loop.cancel(2);
  ASSERT_TRUE(sinks[1]->wait_for_finish());
  EXPECT_TRUE(loop.submit(request_of({1}, 5), sinks[1]).ok()) << "a finish makes room at once";
  EXPECT_EQ(refused_sink->finishes(), 0);
}

TEST(Loop, DrainsThenRefuses) {
  FakeOptions options;
  options.latency_us = 500;
  FakeEngine engine(options);
  Loop loop(engine, {});
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(loop.submit(request_of({1, 2}, 40), sink).ok());
  EXPECT_FALSE(loop.drain(1000));
  EXPECT_EQ(sink->finishes(), 0);
  EXPECT_EQ(loop.submit(request_of({1}, 1), sink).error().kind, ErrorKind::kResource);
  EXPECT_TRUE(loop.drain(kPatienceUs));
  EXPECT_EQ(sink->finishes(), 1);
  EXPECT_EQ(sink->tokens().size(), 40u);
}

TEST(Loop, ItsEndFinishesEveryRequestAndEmptiesTheEngine) {
  FakeOptions options;
  options.latency_us = 300;
  options.limits.max_in_flight = 3;
  FakeEngine engine(options);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  {
    Loop loop(engine, {.max_queued = 100, .max_running = 2});
    for (int i = 0; i < 10; ++i) {
      sinks.push_back(std::make_shared<RecordingSink>());
      ASSERT_TRUE(loop.submit(request_of({1 + i}, 0), sinks.back()).ok());
    }
    ASSERT_TRUE(sinks[0]->wait_for_tokens(3));
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->finishes(), 1);
    EXPECT_EQ(sink->finish().reason, FinishReason::kCancelled);
    EXPECT_EQ(sink.use_count(), 1) << "the loop kept a sink";
  }
  EXPECT_DEATH(engine.collect(), "no step in flight");
}

TEST(Loop, ReportsNumericalErrors) {
  FakeOptions options;
  options.fault_prompt_token = 3;
  options.fault_counter = 2;
  FakeEngine engine(options);
  Loop loop(engine, {});
  const auto broken = std::make_shared<RecordingSink>();
  const auto sound = std::make_shared<RecordingSink>();
  ASSERT_TRUE(loop.submit(request_of({3, 4}, 10), broken).ok());
  ASSERT_TRUE(loop.submit(request_of({4, 3}, 10), sound).ok());
  ASSERT_TRUE(broken->wait_for_finish());
  ASSERT_TRUE(sound->wait_for_finish());
  EXPECT_EQ(broken->finish().reason, FinishReason::kNumericalError);
  EXPECT_EQ(broken->tokens().size(), 2u);
  EXPECT_EQ(sound->finish().reason, FinishReason::kLength);
  EXPECT_EQ(loop.stats().non_finite_steps_total, 1);
}

// Processor time of the whole process while the loop has nothing to do.
TEST(Loop, SleepsWhenIdle) {
  FakeEngine engine(FakeOptions{});
  Loop loop(engine, {});
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(loop.submit(request_of({1}, 3), sink).ok());
  ASSERT_TRUE(sink->wait_for_finish());
  const auto processor_us = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
  };
  const int64_t before_us = processor_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(processor_us() - before_us, 20'000);
}

}  // namespace
}  // namespace assay::scheduler
