// Sequence: what the scheduler knows of one request. Positions [0, P) are the prompt, the generated tokens follow.
//
// Owner and thread: the scheduler's. make_sequence() reserves all memory that it will need, on any thread: a request
// may be as long as the context, so what is reserved counts only once it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "scheduler/adjustments.h"
#include "scheduler/request.h"

namespace assay::scheduler {

enum class Stage : uint8_t {
  kWaiting,    // holds nothing
  kRunning,    // may hold pages and a slot
  kPreempted,  // gets no new rows; becomes kWaiting once none is in flight
  kFinished,   // its finish is delivered; goes away once no row is in flight
};

struct Sequence {
  uint64_t id = 0;
  Request request;
  Adjustments adjustments;
  int32_t max_generated = 0;  // max_tokens, or what the context leaves
  Stage stage = Stage::kWaiting;

  std::vector<int32_t> generated;  // collected tokens
  int32_t pending = 0;             // tokens sampled by steps in flight
  engine::TokenSource newest;      // the latest generated token, collected or pending

  int32_t submitted = 0;     // positions that rows submitted since the last admission cover
  int32_t replay_until = 0;  // generated tokens below this position are replayed
  int32_t rows_in_flight = 0;
  uint64_t last_service = 0;  // rank of its latest row, or of its admission, among all rows and admissions

  std::vector<int32_t> pages;  // page i holds positions [i * page_tokens, (i + 1) * page_tokens)
  int32_t state_slot = -1;     // written by its latest row

  // Shared prefill. A follower waits while it has a leader; a leader's prefill is cut at fork_at while it has
  // followers.
  Sequence* leader = nullptr;
  Sequence* first_follower = nullptr;
  Sequence* next_follower = nullptr;  // of the same leader
  int32_t fork_at = 0;

  std::vector<ops::SampleResult> prompt_logprobs;
  int32_t targets_requested = 0;  // prompt positions whose target was asked for, in order

  // Its row in the step being planned: positions [submitted, submitted + planned_tokens).
  int32_t planned_tokens = 0;
  int32_t planned_slot = -1;

  int32_t prompt_tokens() const { return static_cast<int32_t>(request.prompt.size()); }
  // Positions whose tokens are known, or will be when the steps before have run.
  int32_t known_tokens() const { return prompt_tokens() + static_cast<int32_t>(generated.size()) + pending; }
  // Its next row is a decode row, not a unit of prefill or replay.
  bool decoding() const { return submitted >= prompt_tokens() && submitted >= replay_until; }
  bool runnable() const {
    if (stage != Stage::kRunning || leader != nullptr || (pending > 0 && adjustments.needs_history())) return false;
    return !decoding() || known_tokens() - prompt_tokens() < max_generated;
  }
  engine::Phase phase() const {
    if (submitted < prompt_tokens()) return engine::Phase::kPrefill;
    return decoding() ? engine::Phase::kDecode : engine::Phase::kVerify;
  }
  // Where a row that starts at `submitted` ends at the latest: phases do not mix in a row.
  int32_t phase_end() const {
    if (first_follower != nullptr && submitted < fork_at) return fork_at;
    if (submitted < prompt_tokens()) return prompt_tokens();
    return decoding() ? submitted + 1 : replay_until;
  }
  // Outputs of the positions [begin, end): targets of the prompt, and a sample when all known tokens have been run.
  int32_t targets_in(int32_t begin, int32_t end) const;
  bool samples_at(int32_t end) const { return end == known_tokens(); }
};

// The request has passed check_request().
std::unique_ptr<Sequence> make_sequence(uint64_t id, Request request, const engine::EngineLimits& limits);

inline int32_t Sequence::targets_in(int32_t begin, int32_t end) const {
  if (!request.prompt_logprobs) return 0;
  const int32_t first = begin > targets_requested ? begin : targets_requested;
  const int32_t last = end < prompt_tokens() - 1 ? end : prompt_tokens() - 1;
  return last > first ? last - first : 0;
}

}  // namespace assay::scheduler
