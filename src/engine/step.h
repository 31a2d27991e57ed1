// A step: one forward pass over rows of several sequences, as plain data. It can be logged, replayed, or sent to
// another process; it holds no pointers and no requests.
//
// Invariants a step must hold (the engine CHECKs them):
//   rows are ordered decode and verify first, then prefill;
//   a prefill row ends at an absolute multiple of 64 tokens or at the end of its prompt;
//   a row's pages cover positions [0, position + token_count);
//   state_write is no row's state_read, and no two rows write one slot;
//   outputs are ordered by token index.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/batch.h"
#include "ops/sample/sample.h"

namespace assay::engine {

using ops::Phase;

// A token id, or the token that output `output` of step `step` will be: it need not have left the device.
struct TokenSource {
  int32_t id = -1;
  uint64_t step = 0;
  int32_t output = 0;

  static TokenSource literal(int32_t id) { return {id, 0, 0}; }
  static TokenSource of(uint64_t step, int32_t output) { return {-1, step, output}; }
};

struct StepRow {
  uint64_t sequence = 0;  // whose row this is; for logs
  Phase phase = Phase::kDecode;
  int32_t first_token = 0;  // into Step::tokens
  int32_t token_count = 0;
  int32_t position = 0;    // absolute, of the first token
  int32_t first_page = 0;  // into Step::pages
  int32_t page_count = 0;
  int32_t state_read = -1;  // -1: the sequence starts here
  int32_t state_write = -1;
};

// Asks for the logits of one token of the step, and for a sample of them.
struct OutputRequest {
  int32_t token = 0;  // into Step::tokens
  ops::SampleParams params;
};

struct Step {
  uint64_t id = 0;  // rising by one from step to step
  std::vector<TokenSource> tokens;
  std::vector<StepRow> rows;
  std::vector<int32_t> pages;
  std::vector<OutputRequest> outputs;
  std::vector<ops::LogitAdjustment> adjustments;  // SampleParams::first_adjustment points here
  // Given back since the step before; poisoned before this step runs.
  std::vector<int32_t> freed_pages;
  std::vector<int32_t> freed_slots;

  // Empties all lists and keeps their memory.
  void clear() {
    tokens.clear();
    rows.clear();
    pages.clear();
    outputs.clear();
    adjustments.clear();
    freed_pages.clear();
    freed_slots.clear();
  }
};

struct StepResult {
  uint64_t id = 0;
  std::vector<ops::SampleResult> outputs;  // as Step::outputs
  uint32_t sentinel = 0;                   // OR of all sentinel words; 0: nothing non-finite was seen
  int32_t sentinel_layer = -1;             // first layer with a flag; the layer count stands for the head
  int64_t compute_us = 0;
};

}  // namespace assay::engine
