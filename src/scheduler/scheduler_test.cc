#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "scheduler/fake_engine.h"

namespace assay::scheduler {
namespace {

using engine::Phase;
using engine::Step;
using engine::StepRow;
using testing::ElementsAre;
using testing::IsEmpty;

engine::EngineLimits small_limits() { return FakeOptions{}.limits; }

Request request_of(int32_t prompt_tokens, int32_t max_tokens) {
  Request request;
  request.prompt.resize(prompt_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 1);
  request.max_tokens = max_tokens;
  return request;
}

// A result that samples `token` for every output of the step.
engine::StepResult result_of(const Step& step, int32_t token) {
  engine::StepResult result;
  result.id = step.id;
  for (const engine::OutputRequest& output : step.outputs) {
    ops::SampleResult sample{};
    sample.token = output.params.target >= 0 ? output.params.target : token;
    result.outputs.push_back(sample);
  }
  return result;
}

std::vector<int32_t> token_counts(const Step& step) {
  std::vector<int32_t> counts;
  for (const StepRow& row : step.rows) counts.push_back(row.token_count);
  return counts;
}

std::vector<uint64_t> sequences(const Step& step) {
  std::vector<uint64_t> ids;
  for (const StepRow& row : step.rows) ids.push_back(row.sequence);
  return ids;
}

TEST(Scheduler, CutsPrefillAtMultiplesAndSamplesTheLastPromptToken) {
  engine::EngineLimits limits = small_limits();
  limits.max_step_tokens = 150;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(200, 2));
  const Step first = *scheduler.schedule();
  EXPECT_THAT(token_counts(first), ElementsAre(128));
  EXPECT_THAT(first.outputs, IsEmpty());
  EXPECT_EQ(first.rows[0].state_read, -1);
  EXPECT_THAT(scheduler.update(result_of(first, 9)), IsEmpty());
  const Step second = *scheduler.schedule();
  EXPECT_THAT(token_counts(second), ElementsAre(72));
  EXPECT_EQ(second.rows[0].position, 128);
  EXPECT_EQ(second.rows[0].state_read, first.rows[0].state_write);
  EXPECT_NE(second.rows[0].state_write, second.rows[0].state_read);
  ASSERT_EQ(second.outputs.size(), 1u);
  EXPECT_EQ(second.outputs[0].token, 71);
  EXPECT_EQ(second.outputs[0].params.counter, 0u);
  EXPECT_EQ(scheduler.update(result_of(second, 9)).size(), 1u);
  const Step third = *scheduler.schedule();
  EXPECT_EQ(third.rows[0].phase, Phase::kDecode);
  EXPECT_EQ(third.tokens[0].id, 9);
  EXPECT_EQ(third.rows[0].position, 200);
  EXPECT_EQ(third.outputs[0].params.counter, 1u);
  EXPECT_THAT(third.freed_slots, ElementsAre(first.rows[0].state_write));
  const std::span<const Event> events = scheduler.update(result_of(third, 8));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<TokenEvent>(events[0].what).index, 1);
  EXPECT_EQ(std::get<FinishEvent>(events[1].what).reason, FinishReason::kLength);
  EXPECT_EQ(scheduler.open(), 0);
  EXPECT_EQ(scheduler.pages().used(), 0);
  EXPECT_EQ(scheduler.slots().used(), 0);
}

TEST(Scheduler, ShortPromptsShareTheStepsOfALongOneAndDecodesGoFirst) {
  engine::EngineLimits limits = small_limits();
  limits.max_step_tokens = 200;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(900, 5));
  scheduler.add(2, request_of(10, 5));
  const Step first = *scheduler.schedule();
  EXPECT_THAT(sequences(first), ElementsAre(1, 2));
  EXPECT_THAT(token_counts(first), ElementsAre(128, 10));
  scheduler.update(result_of(first, 9));
  const Step second = *scheduler.schedule();
  EXPECT_THAT(sequences(second), ElementsAre(2, 1));
  EXPECT_THAT(token_counts(second), ElementsAre(1, 192));
  EXPECT_EQ(second.rows[0].phase, Phase::kDecode);
}

TEST(Scheduler, NeitherDecodeNorPrefillStarvesInTinySteps) {
  engine::EngineLimits limits = small_limits();
  limits.max_step_tokens = 64;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(10, 100));
  scheduler.update(result_of(*scheduler.schedule(), 9));
  scheduler.add(2, request_of(640, 100));
  int decodes = 0, prefills = 0;
  for (int i = 0; i < 20; ++i) {
    const Step step = *scheduler.schedule();
    for (const StepRow& row : step.rows) ++(row.phase == Phase::kPrefill ? prefills : decodes);
    scheduler.update(result_of(step, 9));
  }
  EXPECT_EQ(prefills, 10);
  EXPECT_EQ(decodes, 10);
}

TEST(Scheduler, TakesTurnsWhenRowsAreFew) {
  engine::EngineLimits limits = small_limits();
  limits.max_step_rows = 2;
  Scheduler scheduler(limits, 8);
  for (uint64_t id = 1; id <= 5; ++id) scheduler.add(id, request_of(10, 100));
  std::map<uint64_t, int> served;  // once all decode: until then those that do go first
  for (int i = 0; i < 70; ++i) {
    const Step step = *scheduler.schedule();
    for (const StepRow& row : step.rows) {
      if (i >= 20) ++served[row.sequence];
      EXPECT_TRUE(i < 20 || row.phase == Phase::kDecode);
    }
    scheduler.update(result_of(step, 9));
  }
  for (const auto& [id, count] : served) EXPECT_NEAR(count, 20, 1) << "sequence " << id;
  EXPECT_EQ(served.size(), 5u);
}

TEST(Scheduler, RunsNoTokenPastTheLastOne) {
  engine::EngineLimits limits = small_limits();
  limits.max_in_flight = 3;
  Scheduler scheduler(limits, 8);
  scheduler.add(1, request_of(10, 2));
  EXPECT_NE(scheduler.schedule(), nullptr);
  EXPECT_NE(scheduler.schedule(), nullptr);
  EXPECT_EQ(scheduler.schedule(), nullptr) << "both tokens are in flight";
}

TEST(Scheduler, RunsTheTokenOfAStepInFlightAndDropsItAfterAStop) {
  engine::EngineLimits limits = small_limits();
  limits.max_in_flight = 2;
  Scheduler scheduler(limits, 4);
  Request request = request_of(10, 20);
  request.stop_tokens = {7};
  scheduler.add(1, request);
  const Step first = *scheduler.schedule();
  const Step second = *scheduler.schedule();
  EXPECT_EQ(scheduler.schedule(), nullptr);
  EXPECT_EQ(second.tokens[0].step, first.id);
  EXPECT_EQ(second.tokens[0].output, 0);
  EXPECT_EQ(second.rows[0].state_read, first.rows[0].state_write);
  EXPECT_NE(second.rows[0].state_write, first.rows[0].state_write);
  const std::span<const Event> events = scheduler.update(result_of(first, 7));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<TokenEvent>(events[0].what).result.token, 7);
  EXPECT_EQ(std::get<FinishEvent>(events[1].what).reason, FinishReason::kStop);
  EXPECT_EQ(scheduler.pages().used(), 1) << "the second step still writes it";
  EXPECT_EQ(scheduler.schedule(), nullptr);
  EXPECT_THAT(scheduler.update(result_of(second, 5)), IsEmpty());
  EXPECT_EQ(scheduler.pages().used(), 0);
  EXPECT_EQ(scheduler.slots().used(), 0);
}

TEST(Scheduler, PreemptsTheLatestAndReplaysItsTokensAsVerifyRows) {
  engine::EngineLimits limits = small_limits();
  limits.page_tokens = 4;
  limits.page_count = 8;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(10, 18));
  scheduler.add(2, request_of(4, 18));
  std::vector<Step> steps;
  while (scheduler.preemptions() == 0) {
    steps.push_back(*scheduler.schedule());
    scheduler.update(result_of(steps.back(), 9));
    ASSERT_LT(steps.size(), 30u);
  }
  EXPECT_THAT(sequences(steps.back()), ElementsAre(1)) << "the earlier one takes the pages of the later";
  EXPECT_THAT(steps.back().freed_pages, testing::SizeIs(testing::Ge(2u)));
  EXPECT_EQ(scheduler.waiting(), 1);
  int32_t known = -1;
  for (const Step& step : steps) {
    for (const StepRow& row : step.rows) {
      if (row.sequence == 2) known = row.position + row.token_count + 1;
    }
  }
  Step step;
  do {
    step = *scheduler.schedule();
    scheduler.update(result_of(step, 9));
  } while (scheduler.open() == 2);
  step = *scheduler.schedule();
  EXPECT_EQ(step.rows[0].phase, Phase::kPrefill);
  EXPECT_THAT(token_counts(step), ElementsAre(4));
  EXPECT_THAT(step.outputs, IsEmpty()) << "the first token is known already";
  scheduler.update(result_of(step, 9));
  step = *scheduler.schedule();
  EXPECT_EQ(step.rows[0].phase, Phase::kVerify);
  EXPECT_EQ(step.rows[0].position, 4);
  EXPECT_THAT(token_counts(step), ElementsAre(known - 4));
  ASSERT_EQ(step.outputs.size(), 1u);
  EXPECT_EQ(step.outputs[0].token, known - 5);
  EXPECT_EQ(step.outputs[0].params.counter, static_cast<uint64_t>(known - 4));
}

TEST(Scheduler, AdmitsInOrderAndKeepsPagesForThoseThatRun) {
  engine::EngineLimits limits = small_limits();
  limits.page_tokens = 16;
  limits.page_count = 10;
  limits.max_step_tokens = 64;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(100, 10));  // 7 of 10 pages
  scheduler.add(2, request_of(40, 10));   // 3 pages, and one to spare for the first
  scheduler.add(3, request_of(1, 10));
  ASSERT_NE(scheduler.schedule(), nullptr);
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.waiting(), 2) << "the third does not overtake the second";
}

TEST(Scheduler, LimitsRunningByStateSlots) {
  engine::EngineLimits limits = small_limits();
  limits.state_slots = 7;
  EXPECT_EQ(Scheduler(limits, 64).max_running(), 3);
  limits.state_slots = 0;
  Scheduler scheduler(limits, 64);
  EXPECT_EQ(scheduler.max_running(), 64);
  scheduler.add(1, request_of(3, 2));
  const Step step = *scheduler.schedule();
  EXPECT_EQ(step.rows[0].state_read, -1);
  EXPECT_EQ(step.rows[0].state_write, -1);
}

TEST(Scheduler, ScoresThePromptInChunksAndDeliversOnce) {
  engine::EngineLimits limits = small_limits();
  limits.max_step_outputs = 64;
  limits.max_step_tokens = 256;
  Scheduler scheduler(limits, 4);
  Request request = request_of(130, 1);
  request.prompt_logprobs = true;
  scheduler.add(1, request);
  std::span<const Event> events;
  std::vector<size_t> outputs;
  while (scheduler.open() > 0) {
    const Step step = *scheduler.schedule();
    outputs.push_back(step.outputs.size());
    EXPECT_EQ(step.outputs[0].params.target, step.tokens[step.outputs[0].token].id + 1);
    EXPECT_THAT(events, IsEmpty());
    events = scheduler.update(result_of(step, 9));
  }
  EXPECT_THAT(outputs, ElementsAre(64, 64, 2));
  ASSERT_EQ(events.size(), 3u);
  const auto& results = std::get<PromptLogprobsEvent>(events[0].what).results;
  ASSERT_EQ(results.size(), 129u);
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].token, request.prompt[i + 1]);
  EXPECT_EQ(std::get<TokenEvent>(events[1].what).result.token, 9);
}

TEST(Scheduler, ScoresAPromptThatFillsTheContext) {
  engine::EngineLimits limits = small_limits();
  limits.context_tokens = 32;
  limits.page_count = 2;  // of 16 positions
  Request request = request_of(32, 0);
  request.prompt_logprobs = true;
  EXPECT_EQ(check_request(request, limits).error().wanted, "at most 31 tokens");
  request.score_only = true;
  ASSERT_TRUE(check_request(request, limits).ok());
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request);
  const std::span<const Event> events = scheduler.update(result_of(*scheduler.schedule(), 9));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<PromptLogprobsEvent>(events[0].what).results.size(), 31u);
  EXPECT_EQ(std::get<FinishEvent>(events[1].what).reason, FinishReason::kLength);
  EXPECT_EQ(std::get<FinishEvent>(events[1].what).generated_tokens, 0);
  EXPECT_EQ(scheduler.schedule(), nullptr);
  EXPECT_EQ(scheduler.pages().used(), 0);
  request.prompt.push_back(1);
  EXPECT_EQ(check_request(request, limits).error().wanted, "at most 32 tokens");
}

TEST(Scheduler, EndsAtTheContextAndAtANumericalError) {
  engine::EngineLimits limits = small_limits();
  limits.context_tokens = 12;
  Scheduler scheduler(limits, 4);
  scheduler.add(1, request_of(10, 0));
  scheduler.update(result_of(*scheduler.schedule(), 9));
  const std::span<const Event> last = scheduler.update(result_of(*scheduler.schedule(), 9));
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(std::get<FinishEvent>(last[1].what).reason, FinishReason::kLength);

  scheduler.add(2, request_of(10, 0));
  engine::StepResult broken = result_of(*scheduler.schedule(), -1);
  broken.outputs[0].numerical_error = 1;
  const std::span<const Event> events = scheduler.update(broken);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<FinishEvent>(events[0].what).reason, FinishReason::kNumericalError);
  EXPECT_EQ(std::get<FinishEvent>(events[0].what).generated_tokens, 0);
  EXPECT_EQ(scheduler.pages().used(), 0);
}

// A running one, a waiting one, one that has time left and one without a deadline.
TEST(Scheduler, EndsRequestsAtTheirDeadline) {
  Scheduler scheduler(small_limits(), 2);
  for (const int64_t deadline_us : {1000, 0, 2001, 2000}) {
    Request request = request_of(10, 0);
    request.deadline_us = deadline_us;
    scheduler.add(scheduler.open() + 1, request);
  }
  const Step step = *scheduler.schedule();
  EXPECT_THAT(scheduler.expire(999), IsEmpty());
  const std::span<const Event> ended = scheduler.expire(2000);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].id, 1u);
  EXPECT_EQ(ended[1].id, 4u);
  for (const Event& event : ended) EXPECT_EQ(std::get<FinishEvent>(event.what).reason, FinishReason::kDeadline);
  EXPECT_THAT(scheduler.expire(2000), IsEmpty());
  const std::span<const Event> events = scheduler.update(result_of(step, 9));
  ASSERT_EQ(events.size(), 1u) << "the tokens of the ended one are dropped";
  EXPECT_EQ(events[0].id, 2u);
  EXPECT_EQ(scheduler.open(), 2);
  EXPECT_EQ(scheduler.cancel_all().size(), 2u);
  EXPECT_EQ(scheduler.open(), 0);
  EXPECT_EQ(scheduler.pages().used(), 0);
  EXPECT_EQ(scheduler.slots().used(), 0);
}

TEST(Scheduler, CancelsWaitingAndRunningOnes) {
  Scheduler scheduler(small_limits(), 1);
  scheduler.add(1, request_of(10, 0));
  scheduler.add(2, request_of(10, 0));
  const Step step = *scheduler.schedule();
  EXPECT_TRUE(scheduler.cancel(2).has_value());
  EXPECT_TRUE(scheduler.cancel(1).has_value());
  EXPECT_FALSE(scheduler.cancel(1).has_value());
  EXPECT_FALSE(scheduler.cancel(77).has_value());
  EXPECT_EQ(scheduler.pages().used(), 1);
  EXPECT_EQ(scheduler.schedule(), nullptr);
  EXPECT_THAT(scheduler.update(result_of(step, 9)), IsEmpty());
  EXPECT_EQ(scheduler.pages().used(), 0);
  EXPECT_EQ(scheduler.slots().used(), 0);
}

TEST(Scheduler, FollowersUseThePrefillOfTheirLeader) {
  Scheduler scheduler(small_limits(), 8);
  Request request = request_of(200, 2);
  scheduler.add(1, request);
  scheduler.add(2, request, 1);
  scheduler.add(3, request, 2);
  const Step first = *scheduler.schedule();
  EXPECT_THAT(sequences(first), ElementsAre(1));
  EXPECT_THAT(token_counts(first), ElementsAre(192));  // the last multiple of 64 before the end
  scheduler.update(result_of(first, 9));
  const Step second = *scheduler.schedule();
  EXPECT_THAT(sequences(second), testing::UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(token_counts(second), ElementsAre(8, 8, 8));
  for (const StepRow& row : second.rows) {
    EXPECT_EQ(row.state_read, first.rows[0].state_write);
    EXPECT_EQ(row.page_count, 13);
    EXPECT_TRUE(std::equal(first.pages.begin(), first.pages.end(), second.pages.begin() + row.first_page));
  }
  EXPECT_EQ(scheduler.pages().used(), 12 + 3);
  EXPECT_EQ(scheduler.shared_prompt_tokens(), 2 * 192);
  scheduler.update(result_of(second, 9));
  EXPECT_EQ(scheduler.slots().used(), 3);
  const Step third = *scheduler.schedule();
  EXPECT_THAT(third.freed_slots, ElementsAre(first.rows[0].state_write));
  scheduler.cancel(1);
  scheduler.update(result_of(third, 9));
  EXPECT_EQ(scheduler.open(), 0);
  EXPECT_EQ(scheduler.pages().used(), 0);
  EXPECT_EQ(scheduler.slots().used(), 0);
}

TEST(Scheduler, FollowersGoOnWithoutTheirLeader) {
  Scheduler scheduler(small_limits(), 8);
  const Request request = request_of(200, 1);
  scheduler.add(1, request);
  scheduler.add(2, request, 1);
  scheduler.cancel(1);
  const Step step = *scheduler.schedule();
  EXPECT_THAT(sequences(step), ElementsAre(2));
  EXPECT_THAT(token_counts(step), ElementsAre(200));
  scheduler.update(result_of(step, 9));
  scheduler.add(3, request, 2);  // finished
  EXPECT_THAT(token_counts(*scheduler.schedule()), ElementsAre(200));
}

TEST(CheckRequest, SaysWhatIsImpossible) {
  engine::EngineLimits limits = small_limits();
  limits.page_count = 10;  // of 16 positions
  limits.max_step_outputs = 20;
  EXPECT_TRUE(check_request(request_of(10, 0), limits).ok());
  EXPECT_EQ(check_request(request_of(0, 0), limits).error().what, "empty prompt");
  Request request = request_of(10, 0);
  request.prompt[3] = 1000;
  EXPECT_EQ(check_request(request, limits).error().got, "1000");
  EXPECT_EQ(check_request(request, limits).error().wanted, "0 to 999");
  request.prompt[3] = -1;
  EXPECT_FALSE(check_request(request, limits).ok());
  request = request_of(10, -1);
  EXPECT_EQ(check_request(request, limits).error().where, "max_tokens");
  request = request_of(10, 1);
  request.top_logprobs = 21;
  EXPECT_EQ(check_request(request, limits).error().where, "top_logprobs");
  request = request_of(20, 1);
  request.prompt_logprobs = true;
  EXPECT_TRUE(check_request(request, limits).ok());
  request.prompt.push_back(1);
  EXPECT_EQ(check_request(request, limits).error().where, "prompt_logprobs");
}

TEST(CheckRequest, ComparesWithContextAndPages) {
  engine::EngineLimits limits = small_limits();
  limits.context_tokens = 200;
  limits.page_count = 10;  // of 16 positions
  const Result<void> too_long = check_request(request_of(200, 1), limits);
  EXPECT_EQ(too_long.error().got, "200 tokens");
  EXPECT_EQ(too_long.error().wanted, "at most 199 tokens");
  EXPECT_TRUE(check_request(request_of(160, 1), limits).ok());
  EXPECT_TRUE(check_request(request_of(160, 0), limits).ok());
  EXPECT_EQ(check_request(request_of(161, 1), limits).error().wanted, "at most 160 positions");
  EXPECT_TRUE(check_request(request_of(100, 61), limits).ok());
  EXPECT_FALSE(check_request(request_of(100, 62), limits).ok());
}

}  // namespace
}  // namespace assay::scheduler
