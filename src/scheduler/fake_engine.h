// FakeEngine: an Engine without a model, for tests of whatever drives one. It keeps what a model would keep, and CHECKs
// every promise of step.h and engine.h as it runs.
//
// Per page and position it stores the token and how it was computed (prompt: prefill; generated: decode, verify); per
// slot the hash of the history. A sampled token is a function of that whole history, the seed and the counter, so it
// equals the token of a solo run (fake_generate) only when the scheduler gave the right tokens, positions, pages, slots
// and phases. Freed pages and slots are poisoned; reading poison, or writing what a step in flight reads, aborts.
//
// One thread at a time uses it, as any Engine.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "engine/engine.h"
#include "scheduler/request.h"

namespace assay::scheduler {

struct FakeOptions {
  engine::EngineLimits limits{.context_tokens = 1024,
                              .max_step_tokens = 256,
                              .max_step_rows = 32,
                              .max_step_outputs = 128,
                              .max_step_adjustments = 1000,
                              .page_tokens = 16,
                              .page_count = 256,
                              .state_slots = 32,
                              .max_in_flight = 1,
                              .vocab_size = 1000};
  int32_t eos_token = 0;
  int32_t eos_every = 0;   // one sampled token in this many is eos_token; 0: never
  int64_t latency_us = 0;  // of a step, counted from its submission
  // Requests whose first prompt token is this fail when they sample the token with this counter.
  int32_t fault_prompt_token = -1;
  uint64_t fault_counter = 0;
  // The token that follows a history, in place of the hash; for tests that need a certain text.
  std::function<int32_t(const std::vector<int32_t>& history, const ops::SampleParams& params)> script;
};

// What a request gets when it runs alone; straight from the formula, with no pages, slots or steps.
struct FakeGeneration {
  std::vector<int32_t> tokens;
  std::vector<ops::SampleResult> prompt_logprobs;
  FinishReason reason = FinishReason::kLength;
};
FakeGeneration fake_generate(const FakeOptions& options, const Request& request);

class FakeEngine : public engine::Engine {
 public:
  explicit FakeEngine(FakeOptions options);

  const engine::EngineLimits& limits() const override { return options_.limits; }
  void submit(const engine::Step& step) override;
  const engine::StepResult& collect() override;

  // Rows run since the start, by phase.
  int64_t rows_run(engine::Phase phase) const { return rows_run_[static_cast<int>(phase)]; }

 private:
  struct Entry {
    int32_t token = -1;  // -1: poisoned, or never written
    bool generated = false;
  };
  struct SlotState {
    uint64_t hash = 0;
    int32_t length = -1;  // -1: poisoned, or never written
  };
  struct Pending {
    engine::Step step;
    int64_t ready_us = 0;
  };

  void check_sizes(const engine::Step& step) const;
  void check_row(const engine::Step& step, const engine::StepRow& row) const;
  void check_hazards(const engine::Step& step) const;
  void poison(const engine::Step& step);
  void run_row(const engine::Step& step, const engine::StepRow& row, engine::StepResult& result, size_t& next_output);
  Entry& entry(const engine::Step& step, const engine::StepRow& row, int32_t position);
  int32_t resolve(const engine::TokenSource& source) const;

  FakeOptions options_;
  std::vector<Entry> entries_;  // page * page_tokens + position in the page
  std::vector<SlotState> slots_;
  std::deque<Pending> in_flight_;
  engine::StepResult result_;
  std::map<uint64_t, std::vector<int32_t>> outputs_;  // tokens of the latest steps
  uint64_t last_step_ = 0;
  int64_t rows_run_[3] = {};
};

}  // namespace assay::scheduler
