// What a model takes of a device's memory, known before any of it is allocated, and how wishes are made to fit.
//
// Counted is what the engine asks the device for. Not counted: the file's mapped pages, which the system may take back,
// and what a driver keeps for itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace assay::engine {

// What a user asks for, and the memory there is.
struct MemoryWishes {
  int64_t memory_bytes = 0;  // of the device
  double utilization = 0.9;  // the part of it that may be used
  int64_t kv_cache_bytes = 0;
  int32_t context_tokens = 0;   // of a sequence
  bool context_chosen = false;  // false: the model's own, which may be shortened
  int32_t sequences = 0;        // that run at once
};

struct MemoryCosts {
  int64_t fixed_bytes = 0;  // weights and what a step works in
  int64_t page_bytes = 0;   // of a KV page, over all layers; 0: the model has no KV
  int32_t page_tokens = 0;
  int32_t slots_per_sequence = 2;  // one to read, and one to write for each step in flight
  int64_t slot_bytes = 0;          // of a slot of recurrent state; 0: the model has none
};

struct MemoryFit {
  int32_t context_tokens = 0;
  int32_t sequences = 0;
  int32_t page_count = 0;
  int32_t state_slots = 0;             // slots_per_sequence for each
  std::vector<std::string> changes{};  // what is less than was asked for, and why; a line each
};

// Order of precedence: weights and workspaces; one sequence; then state slots, up to half of what is left, then pages.
// Errors: kResource naming the bytes that the smallest choice takes and those allowed; kInvalidArgument when a chosen
// context does not fit into the KV cache.
Result<MemoryFit> fit_memory(const MemoryWishes& wishes, const MemoryCosts& costs);

// What the engine allocates besides weights and state.
struct StepBytes {
  int64_t workspace = 0;
  int64_t logits = 0;
  int64_t sampling = 0;  // parameters, results, adjustments
  int64_t arrays = 0;    // ids, positions, page tables, sentinel words

  int64_t total() const { return workspace + logits + sampling + arrays; }
};

struct LedgerLine {
  std::string what;
  int64_t bytes = 0;
  std::string detail;
};

struct Ledger {
  std::vector<LedgerLine> lines;
  int64_t allowed_bytes = 0;  // memory_bytes * utilization
  std::string allowed_detail;
  std::vector<std::string> changes;

  int64_t total() const;
  // A table, a line each: the lines, their sum, what is allowed, the changes.
  std::vector<std::string> table() const;
};

}  // namespace assay::engine
