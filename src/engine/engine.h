// Engine: runs steps. What the scheduler sees of the model, the kernels and the device.
//
// submit() never waits and may be called again before collect(); collect() waits for the oldest step and returns its
// result; results come in the order of submission. One thread uses an engine. Neither allocates: steps and results are
// copied into memory that was reserved for the largest.
#pragma once

#include <cstdint>

#include "engine/step.h"

namespace assay::engine {

// Sizes fixed at load.
struct EngineLimits {
  int32_t context_tokens = 0;        // most positions of a sequence
  int32_t max_step_tokens = 0;       // most tokens of a step
  int32_t max_step_rows = 0;         // most rows of a step
  int32_t max_step_outputs = 0;      // most outputs of a step
  int32_t max_step_adjustments = 0;  // most adjusted logits of a step; at least vocab_size, so that any row fits
  int32_t page_tokens = 0;           // positions of a KV page
  int32_t page_count = 0;
  int32_t state_slots = 0;    // 0: the model has no recurrent state
  int32_t max_in_flight = 1;  // steps submitted and not collected
  int32_t vocab_size = 0;     // token ids are below this
};

// Prefill is cut at absolute multiples of this many tokens only.
inline constexpr int32_t kPrefillCut = 64;

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineLimits& limits() const = 0;
  virtual void submit(const Step& step) = 0;  // takes a copy
  virtual const StepResult& collect() = 0;    // valid until the next collect()
};

inline int32_t pages_per_sequence(const EngineLimits& limits) {
  return (limits.context_tokens + limits.page_tokens - 1) / limits.page_tokens;
}

// An empty step that takes any step of an engine without allocating.
inline Step reserved_step(const EngineLimits& limits) {
  Step step;
  step.tokens.reserve(static_cast<size_t>(limits.max_step_tokens));
  step.rows.reserve(static_cast<size_t>(limits.max_step_rows));
  step.pages.reserve(static_cast<size_t>(limits.max_step_rows) * static_cast<size_t>(pages_per_sequence(limits)));
  step.outputs.reserve(static_cast<size_t>(limits.max_step_outputs));
  step.adjustments.reserve(static_cast<size_t>(limits.max_step_adjustments));
  step.freed_pages.reserve(static_cast<size_t>(limits.page_count));
  step.freed_slots.reserve(static_cast<size_t>(limits.state_slots));
  return step;
}

}  // namespace assay::engine
