// FakeEngine must see what the scheduler could do wrong: each promise broken once.
#include "scheduler/fake_engine.h"

#include <gtest/gtest.h>

namespace assay::scheduler {
namespace {

using engine::Phase;
using engine::Step;
using engine::TokenSource;

FakeOptions options_with_two_in_flight() {
  FakeOptions options;
  options.limits.max_in_flight = 2;
  return options;
}

struct RowSpec {
  Phase phase = Phase::kPrefill;
  int32_t position = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;
  int32_t state_read = -1;
  int32_t state_write = 0;
};

Step step_of(uint64_t id, const std::vector<RowSpec>& rows) {
  Step step;
  step.id = id;
  for (const RowSpec& row : rows) {
    step.rows.push_back({1, row.phase, static_cast<int32_t>(step.tokens.size()),
                         static_cast<int32_t>(row.tokens.size()), row.position, static_cast<int32_t>(step.pages.size()),
                         static_cast<int32_t>(row.pages.size()), row.state_read, row.state_write});
    for (const int32_t token : row.tokens) step.tokens.push_back(TokenSource::literal(token));
    step.pages.insert(step.pages.end(), row.pages.begin(), row.pages.end());
  }
  return step;
}

const RowSpec kPrompt{Phase::kPrefill, 0, {5, 6, 7}, {2}, -1, 0};
const RowSpec kDecodeRow{Phase::kDecode, 3, {8}, {2}, 0, 1};

TEST(FakeEngine, VerifyRowsGiveWhatDecodeRowsGive) {
  FakeOptions options;
  Request request;
  request.prompt = {5, 6, 7};
  request.max_tokens = 3;
  const FakeGeneration solo = fake_generate(options, request);
  ASSERT_EQ(solo.tokens.size(), 3u);

  FakeEngine engine(options);
  Step prompt = step_of(1, {kPrompt});
  prompt.outputs.push_back({2, {}});
  engine.submit(prompt);
  EXPECT_EQ(engine.collect().outputs[0].token, solo.tokens[0]);
  Step verify = step_of(2, {{Phase::kVerify, 3, {solo.tokens[0], solo.tokens[1]}, {2}, 0, 1}});
  ops::SampleParams params;
  params.counter = 2;
  verify.outputs.push_back({1, params});
  engine.submit(verify);
  EXPECT_EQ(engine.collect().outputs[0].token, solo.tokens[2]);
}

TEST(FakeEngineDeathTest, SeesBadStepsAtSubmit) {
  FakeEngine engine(options_with_two_in_flight());
  EXPECT_DEATH(engine.submit(step_of(2, {kPrompt})), "step 2 after 0");
  EXPECT_DEATH(engine.submit(step_of(1, {kPrompt, {Phase::kDecode, 3, {8}, {3}, 4, 5}})), "after a prefill row");
  EXPECT_DEATH(engine.submit(step_of(1, {{Phase::kPrefill, 3, {5}, {2}, 1, 0}})), "prefill cut at position 3");
  EXPECT_DEATH(engine.submit(step_of(1, {{Phase::kPrefill, 0, {5}, {2, 3}, -1, 0}})), "2 pages for 1 positions");
  EXPECT_DEATH(engine.submit(step_of(1, {kPrompt, {Phase::kPrefill, 0, {5}, {2}, -1, 1}})),
               "page 2 written by one row and held by another");
  EXPECT_DEATH(engine.submit(step_of(1, {kPrompt, {Phase::kPrefill, 0, {5}, {3}, -1, 0}})), "two rows write slot 0");
  EXPECT_DEATH(engine.submit(step_of(1, {{Phase::kDecode, 3, {8}, {2}, 0, 0}})), "slot 0 written and read");
}

TEST(FakeEngineDeathTest, SeesHazardsWithStepsInFlight) {
  FakeEngine engine(options_with_two_in_flight());
  engine.submit(step_of(1, {kPrompt}));
  EXPECT_DEATH(engine.submit(step_of(2, {{Phase::kPrefill, 0, {5}, {3}, -1, 0}})), "slot 0 written while in flight");
  Step freeing = step_of(2, {kDecodeRow});
  freeing.freed_pages = {2};
  EXPECT_DEATH(engine.submit(freeing), "page 2 freed while in flight");
  engine.submit(step_of(2, {kDecodeRow}));
  EXPECT_DEATH(engine.submit(step_of(3, {kDecodeRow})), "2 steps in flight");
}

TEST(FakeEngineDeathTest, SeesPoisonAndStaleState) {
  FakeEngine engine(options_with_two_in_flight());
  engine.submit(step_of(1, {kPrompt}));
  engine.collect();
  Step poisoned = step_of(2, {kDecodeRow});
  poisoned.freed_pages = {2};
  EXPECT_DEATH((engine.submit(poisoned), engine.collect()), "reads poison at position 0");
  EXPECT_DEATH((engine.submit(step_of(2, {{Phase::kDecode, 3, {8}, {2}, 7, 1}})), engine.collect()),
               "slot 7 holds -1 positions");
  Step miscounted = step_of(2, {kDecodeRow});
  miscounted.outputs.push_back({0, {}});
  EXPECT_DEATH((engine.submit(miscounted), engine.collect()), "counter 0 of token 1");
}

}  // namespace
}  // namespace assay::scheduler
