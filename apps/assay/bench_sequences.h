// Sequences side by side on an engine, stepped without a scheduler: what the engine costs and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/observed_engine.h"

namespace assay::app {

// Owns no memory of the engine: sequence i has the i-th share of its pages and two of its state slots. Every state
// starts as noise (ObservedEngine::fill_state), so any sequence can decode at any context without a prefill before.
class BenchSequences {
 public:
  // count sequences of at most `positions` tokens. Errors: kInvalidArgument if the engine was not loaded for so many.
  static Result<BenchSequences> make(engine::ObservedEngine& engine, int32_t count, int32_t positions);

  // Seconds for the prompt [0, tokens) of one sequence, in steps as large as the engine takes, and one sample.
  Result<double> prefill(int32_t tokens);
  // Seconds for `steps` steps, each of one token of the first `batch` sequences, from position `context` on. The first
  // tokens are scattered over the vocabulary; from then on each is the greedy sample of the step before.
  Result<double> decode(int32_t batch, int32_t context, int32_t steps);

 private:
  BenchSequences(engine::ObservedEngine& engine, int32_t count, int32_t positions);

  void add_row(engine::Step& step, int32_t sequence, engine::Phase phase, int32_t position, int32_t token_count);
  Result<void> submit(engine::Step& step);
  Result<void> collect();
  Result<void> collect_all();

  engine::ObservedEngine* engine_;
  int32_t pages_each_;
  std::vector<int32_t> state_;  // by sequence: the slot it reads next, -1 if it has none
  uint64_t last_step_ = 0;
  int32_t in_flight_ = 0;
};

}  // namespace assay::app
