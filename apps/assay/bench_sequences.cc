#include "assay/bench_sequences.h"

#include <algorithm>

#include "base/clock.h"

namespace assay::app {

using engine::EngineLimits;
using engine::Phase;
using engine::Step;
using engine::TokenSource;

namespace {

constexpr uint64_t kNoiseSeed = 1;

// Ids scattered over the vocabulary: many embedding rows and all experts are touched.
int32_t scattered_id(int32_t index, int32_t vocabulary) {
  const uint64_t mixed = (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15ull;
  return static_cast<int32_t>((mixed >> 32) % static_cast<uint64_t>(vocabulary));
}

Error too_many(const char* what, int32_t wanted, int32_t most) {
  return Error{ErrorKind::kInvalidArgument, "the engine was loaded for fewer", what,
               std::to_string(wanted),      "at most " + std::to_string(most), ""};
}

int32_t pages_for(const EngineLimits& limits, int32_t positions) {
  return (positions + limits.page_tokens - 1) / limits.page_tokens;
}

double seconds_since(int64_t begin_us) { return static_cast<double>(now_us() - begin_us) * 1e-6; }

}  // namespace

BenchSequences::BenchSequences(engine::ObservedEngine& engine, int32_t count, int32_t positions)
    : engine_(&engine), pages_each_(pages_for(engine.limits(), positions)) {
  for (int32_t i = 0; i < count; ++i) state_.push_back(engine.limits().state_slots > 0 ? 2 * i : -1);
}

Result<BenchSequences> BenchSequences::make(engine::ObservedEngine& engine, int32_t count, int32_t positions) {
  const EngineLimits& limits = engine.limits();
  const int32_t rows = std::min({limits.max_step_rows, limits.max_step_tokens, limits.max_step_outputs});
  if (count > rows) return too_many("sequences of a step", count, rows);
  if (positions > limits.context_tokens) return too_many("tokens of a sequence", positions, limits.context_tokens);
  BenchSequences sequences(engine, count, positions);
  const int64_t pages = int64_t{count} * sequences.pages_each_;
  if (pages > limits.page_count) return too_many("KV pages", static_cast<int32_t>(pages), limits.page_count);
  engine.fill_state(kNoiseSeed);
  return sequences;
}

Result<double> BenchSequences::prefill(int32_t tokens) {
  const EngineLimits& limits = engine_->limits();
  const int32_t chunk = limits.max_step_tokens / engine::kPrefillCut * engine::kPrefillCut;
  const int64_t begin_us = now_us();
  for (int32_t position = 0; position < tokens; position += chunk) {
    const int32_t count = std::min(chunk, tokens - position);
    Step step;
    add_row(step, 0, Phase::kPrefill, position, count);
    for (int32_t i = 0; i < count; ++i) {
      step.tokens.push_back(TokenSource::literal(scattered_id(position + i, limits.vocab_size)));
    }
    if (position + count == tokens) step.outputs.push_back({count - 1, {}});
    ASSAY_TRY(submit(step));
  }
  ASSAY_TRY(collect_all());
  return seconds_since(begin_us);
}

Result<double> BenchSequences::decode(int32_t batch, int32_t context, int32_t steps) {
  const int64_t begin_us = now_us();
  for (int32_t s = 0; s < steps; ++s) {
    Step step;
    for (int32_t i = 0; i < batch; ++i) {
      add_row(step, i, Phase::kDecode, context + s, 1);
      step.tokens.push_back(s == 0 ? TokenSource::literal(scattered_id(i, engine_->limits().vocab_size))
                                   : TokenSource::of(last_step_, i));
      step.outputs.push_back({i, {}});
    }
    ASSAY_TRY(submit(step));
  }
  ASSAY_TRY(collect_all());
  return seconds_since(begin_us);
}

void BenchSequences::add_row(Step& step, int32_t sequence, Phase phase, int32_t position, int32_t token_count) {
  const int32_t page_count = pages_for(engine_->limits(), position + token_count);
  const int32_t read = state_[sequence];
  const int32_t write = read < 0 ? -1 : read ^ 1;
  step.rows.push_back({static_cast<uint64_t>(sequence), phase, static_cast<int32_t>(step.tokens.size()), token_count,
                       position, static_cast<int32_t>(step.pages.size()), page_count, position == 0 ? -1 : read,
                       write});
  for (int32_t page = 0; page < page_count; ++page) step.pages.push_back(sequence * pages_each_ + page);
  state_[sequence] = write;
}

Result<void> BenchSequences::submit(Step& step) {
  if (in_flight_ == engine_->limits().max_in_flight) ASSAY_TRY(collect());
  step.id = ++last_step_;
  engine_->submit(step);
  ++in_flight_;
  return {};
}

Result<void> BenchSequences::collect() {
  const engine::StepResult& result = engine_->collect();
  --in_flight_;
  if (result.sentinel == 0) return {};
  return Error{ErrorKind::kNumerical,
               "a step met numbers that are not finite",
               "",
               "layer " + std::to_string(result.sentinel_layer),
               "",
               ""};
}

Result<void> BenchSequences::collect_all() {
  while (in_flight_ > 0) ASSAY_TRY(collect());
  return {};
}

}  // namespace assay::app
