// Scheduler: which rows the next step holds. Pure policy: one thread, no clock, no device; the same calls give the same
// steps. It allocates nothing while no more than max_open requests are open: sequences bring their memory with them
// (make_sequence) and leave through retired().
//
// A step takes, in this order: one token of every sequence that decodes; then units of at most kPrefillCut tokens in
// turn, from the sequences still in their prompt (prefill rows, cut at absolute multiples of kPrefillCut only) or
// replaying generated tokens (verify rows). Whoever was served longest ago comes first. A step that left no room for a
// unit makes the next one plan a unit first, so neither kind starves the other.
//
// Admission is in order of arrival. Pages are taken as positions need them; when none is free the latest admitted
// sequence is preempted: once no step in flight refers to it, it gives back pages and slots and waits at its old place
// in the queue. Later it recomputes its prompt as prefill and its generated tokens as verify rows, which gives the same
// bits. A sequence never preempts an earlier one, so the earliest always advances, and so does every one in its time.
//
// State slots: each row reads the slot that the sequence's row before wrote, and writes a free one; collecting a row
// releases the slot that it read. Hence no slot is written that a step in flight reads or writes, and a step can be run
// again.
//
// update() delivers what a result holds. Rows of a finished sequence that are still in flight are discarded then; its
// pages and slots come back when the last of them is collected.
//
// A request that shares the prompt of an earlier one, its leader, waits while the leader runs its prefill. The leader's
// prefill is cut at the last multiple of kPrefillCut and of the page size before the end of the prompt; when the row
// that ends there is planned, the followers that were admitted take references to its pages and to its state slot, and
// run the rest of the prompt by themselves. Cuts change no bits, so each gets what it would get alone. A follower whose
// leader ends, is preempted or gets that far without it goes its own way.
//
// Owner: the loop, or a test.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "state/page_pool.h"
#include "state/slot_pool.h"

namespace assay::scheduler {

struct PromptLogprobsEvent {
  std::span<const ops::SampleResult> results;  // entry i is prompt token i + 1; held by the sequence
};

// What a request produced: prompt log-probabilities once before the first token when asked for, tokens, one finish.
struct Event {
  uint64_t id = 0;
  std::variant<PromptLogprobsEvent, TokenEvent, FinishEvent> what;
};

// Whether an engine with these limits can ever serve the request. Errors: as Loop::submit(), but for the queue.
Result<void> check_request(const Request& request, const engine::EngineLimits& limits);

class Scheduler {
 public:
  // Needs a step that holds one prefill unit, and two state slots where the model has recurrent state.
  Scheduler(const engine::EngineLimits& limits, int32_t max_running, int32_t max_open = 0);

  // Ids rise from call to call. leader: an earlier request with the same prompt whose prefill this one may use; 0:
  // none. A leader that is unknown or finished does not matter.
  void add(std::unique_ptr<Sequence> added, uint64_t leader = 0);
  void add(uint64_t id, Request request, uint64_t leader = 0);  // the request has passed check_request()
  // The finish event, or nothing when the id is unknown or finished.
  std::optional<Event> cancel(uint64_t id);

  // These lists are valid until the next call.
  std::span<const Event> cancel_all();
  // Ends the requests whose deadline is not after now_us.
  std::span<const Event> expire(int64_t now_us);

  // The next step, already counted as in flight: submit it. Null when no row can run before a collect or an add().
  // Valid until the next call.
  const engine::Step* schedule();
  // Takes the result of the oldest step in flight.
  std::span<const Event> update(const engine::StepResult& result);

  // Finished sequences that no step refers to. Events of theirs may still point into them, so the scheduler keeps those
  // that nobody has taken until the next update().
  std::vector<std::unique_ptr<Sequence>>& retired() { return retired_; }

  int32_t in_flight() const { return in_flight_count_; }
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Requests added and not finished.
  int32_t open() const { return open_; }
  // Sequences that can hold pages and state at once.
  int32_t max_running() const { return max_running_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t shared_prompt_tokens() const { return shared_prompt_tokens_; }
  const state::PagePool& pages() const { return pages_; }
  const state::SlotPool& slots() const { return slots_; }
  // Different page and slot indices held by sequences; equals what the pools call used, or something leaked.
  int64_t pages_held() const;
  int64_t slots_held();

 private:
  struct RowInFlight {
    Sequence* sequence = nullptr;
    int32_t state_read = -1;
    int32_t first_output = 0;
    int32_t output_count = 0;
  };
  struct StepInFlight {
    uint64_t id = 0;
    std::vector<RowInFlight> rows;
  };
  // What a step being planned still has room for.
  struct Plan {
    int32_t tokens_left = 0;
    int32_t rows_left = 0;
    int32_t outputs_left = 0;
    int32_t adjustments_left = 0;
  };

  Sequence* find(uint64_t id);
  void admit();
  bool preempting() const;
  int32_t pages_promised() const;
  void by_last_service(bool decoding, std::vector<Sequence*>& sequences) const;
  bool extend(Plan& plan, Sequence& sequence);
  bool ensure_pages(Sequence& sequence, int32_t positions);
  void preempt(Sequence& sequence);
  void follow(Sequence& sequence, Sequence& leader);
  void share_prefill(Sequence& leader);
  void release_followers(Sequence& sequence);
  int32_t fork_position(const Request& request) const;
  StepInFlight& in_flight_at(int32_t index) {
    return in_flight_[static_cast<size_t>((oldest_in_flight_ + index) % limits_.max_in_flight)];
  }
  void emit();
  void emit_row(StepInFlight& record, Sequence& sequence);

  void take_output(Sequence& sequence, const ops::SampleResult& result);
  template <class Predicate>
  std::span<const Event> end_all(FinishReason reason, const Predicate& ends);
  Event finish(Sequence& sequence, FinishReason reason);
  void release_when_idle(Sequence& sequence);

  const engine::EngineLimits limits_;
  state::PagePool pages_;
  state::SlotPool slots_;
  int32_t max_running_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // by arrival; also finished ones with rows in flight
  std::vector<std::unique_ptr<Sequence>> retired_;
  std::vector<Sequence*> running_;       // by arrival
  std::vector<Sequence*> waiting_;       // by arrival
  std::vector<StepInFlight> in_flight_;  // a ring of max_in_flight
  int32_t oldest_in_flight_ = 0;
  int32_t in_flight_count_ = 0;
  engine::Step step_;             // made by the latest schedule()
  std::vector<Sequence*> rows_;   // of the step being planned
  std::vector<Sequence*> units_;  // lists of schedule()
  std::vector<Sequence*> decoding_;
  std::vector<Event> events_;  // of the latest call
  uint64_t last_step_ = 0;
  uint64_t services_ = 0;  // rows and admissions so far
  uint64_t last_id_ = 0;
  int32_t open_ = 0;
  int64_t preemptions_ = 0;
  int64_t shared_prompt_tokens_ = 0;  // prompt tokens that followers did not run
  bool unit_blocked_ = false;         // the step before had no room for any unit of prefill or replay
};

}  // namespace assay::scheduler
