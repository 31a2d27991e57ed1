#include "scheduler/scheduler.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"

namespace assay::scheduler {
namespace {

// A running sequence keeps one slot and takes another per row; with one per sequence to spare no row waits for a slot
// when nothing is in flight.
int32_t running_limit(const engine::EngineLimits& limits, int32_t max_running) {
  if (limits.state_slots == 0) return max_running;
  return std::min(max_running, limits.state_slots / 2);
}

bool arrived_before(const Sequence* a, const Sequence* b) { return a->id < b->id; }

}  // namespace

Scheduler::Scheduler(const engine::EngineLimits& limits, int32_t max_running, int32_t max_open)
    : limits_(limits),
      pages_(limits.page_count, limits.page_tokens),
      slots_(limits.state_slots),
      max_running_(running_limit(limits, max_running)),
      step_(engine::reserved_step(limits)) {
  CHECK(max_running > 0, "max_running {}", max_running);
  CHECK(limits.max_step_tokens >= engine::kPrefillCut, "steps of {} tokens hold no prefill unit of {}",
        limits.max_step_tokens, engine::kPrefillCut);
  CHECK(limits.max_step_rows > 0 && limits.max_step_outputs > 0 && limits.max_in_flight > 0, "{} rows, {} outputs, {}",
        limits.max_step_rows, limits.max_step_outputs, limits.max_in_flight);
  CHECK(limits.state_slots == 0 || limits.state_slots >= 2, "{} state slots", limits.state_slots);
  const auto rows = static_cast<size_t>(limits.max_step_rows);
  in_flight_.resize(static_cast<size_t>(limits.max_in_flight));
  for (StepInFlight& step : in_flight_) step.rows.reserve(rows);
  const size_t sequences = static_cast<size_t>(max_open) + in_flight_.size() * rows;
  sequences_.reserve(sequences);
  retired_.reserve(sequences);
  waiting_.reserve(sequences);
  running_.reserve(static_cast<size_t>(max_running_));
  units_.reserve(static_cast<size_t>(max_running_));
  decoding_.reserve(static_cast<size_t>(max_running_));
  rows_.reserve(rows);
  constexpr size_t kRowEvents = 3;  // prompt log-probabilities, a token, a finish
  events_.reserve(std::max(sequences, kRowEvents * rows));
}

void Scheduler::add(uint64_t id, Request request, uint64_t leader) {
  add(make_sequence(id, std::move(request), limits_), leader);
}

void Scheduler::add(std::unique_ptr<Sequence> added, uint64_t leader) {
  Sequence& sequence = *added;
  CHECK(sequence.id > last_id_, "request {} after {}", sequence.id, last_id_);
  last_id_ = sequence.id;
  const Result<void> possible = check_request(sequence.request, limits_);
  CHECK(possible.ok(), "request {}: {}", sequence.id, possible.error().message());
  if (Sequence* first = find(leader)) follow(sequence, *first);
  waiting_.push_back(&sequence);
  sequences_.push_back(std::move(added));
  ++open_;
}

Sequence* Scheduler::find(uint64_t id) {
  const auto found = std::ranges::lower_bound(sequences_, id, {}, [](const auto& sequence) { return sequence->id; });
  return found == sequences_.end() || (*found)->id != id ? nullptr : found->get();
}

// Positions [0, fork) can be shared: whole pages, a cut, and at least one prompt token left to sample from.
int32_t Scheduler::fork_position(const Request& request) const {
  const int32_t unit = std::lcm(engine::kPrefillCut, limits_.page_tokens);
  return (static_cast<int32_t>(request.prompt.size()) - 1) / unit * unit;
}

// A leader that has begun is too late; a follower whose prompt is scored runs all of it.
void Scheduler::follow(Sequence& sequence, Sequence& leader) {
  const bool begun = leader.submitted > 0 || leader.stage == Stage::kFinished || leader.replay_until > 0;
  const int32_t fork_at = fork_position(sequence.request);
  if (begun || fork_at == 0 || sequence.request.prompt_logprobs) return;
  CHECK(sequence.request.prompt == leader.request.prompt, "sequences {} and {} share no prompt", sequence.id,
        leader.id);
  Sequence& first = leader.leader != nullptr ? *leader.leader : leader;
  sequence.leader = &first;
  sequence.next_follower = std::exchange(first.first_follower, &sequence);
  first.fork_at = fork_at;
}

// The leader's row that ends at fork_at is in the step being planned, and the slot that it writes is its state_slot.
void Scheduler::share_prefill(Sequence& leader) {
  Sequence* next = nullptr;
  for (Sequence* follower = std::exchange(leader.first_follower, nullptr); follower != nullptr; follower = next) {
    next = std::exchange(follower->next_follower, nullptr);
    follower->leader = nullptr;
    if (follower->stage != Stage::kRunning) continue;
    const int32_t page_count = leader.fork_at / limits_.page_tokens;
    follower->pages.assign(leader.pages.begin(), leader.pages.begin() + page_count);
    pages_.share(follower->pages);
    follower->state_slot = leader.state_slot;
    if (leader.state_slot >= 0) slots_.share(leader.state_slot);
    follower->submitted = leader.fork_at;
    shared_prompt_tokens_ += leader.fork_at;
  }
}

// From both ends: the sequence leads and follows no more.
void Scheduler::release_followers(Sequence& sequence) {
  Sequence* next = nullptr;
  for (Sequence* follower = std::exchange(sequence.first_follower, nullptr); follower != nullptr; follower = next) {
    next = std::exchange(follower->next_follower, nullptr);
    follower->leader = nullptr;
  }
  if (sequence.leader == nullptr) return;
  Sequence** link = &sequence.leader->first_follower;
  while (*link != &sequence) link = &(*link)->next_follower;
  *link = std::exchange(sequence.next_follower, nullptr);
  sequence.leader = nullptr;
}

std::optional<Event> Scheduler::cancel(uint64_t id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->stage == Stage::kFinished) return std::nullopt;
  Event event = finish(*sequence, FinishReason::kCancelled);
  release_when_idle(*sequence);
  return event;
}

template <class Predicate>
std::span<const Event> Scheduler::end_all(FinishReason reason, const Predicate& ends) {
  events_.clear();
  for (size_t i = 0; i < sequences_.size();) {
    Sequence& sequence = *sequences_[i];
    if (sequence.stage != Stage::kFinished && ends(sequence)) {
      events_.push_back(finish(sequence, reason));
      release_when_idle(sequence);
    }
    if (i < sequences_.size() && sequences_[i].get() == &sequence) ++i;
  }
  return events_;
}

std::span<const Event> Scheduler::cancel_all() {
  return end_all(FinishReason::kCancelled, [](const Sequence&) { return true; });
}

std::span<const Event> Scheduler::expire(int64_t now_us) {
  return end_all(FinishReason::kDeadline, [now_us](const Sequence& sequence) {
    return sequence.request.deadline_us != 0 && sequence.request.deadline_us <= now_us;
  });
}

std::span<const Event> Scheduler::update(const engine::StepResult& result) {
  CHECK(in_flight_count_ > 0, "result of step {} with no step in flight", result.id);
  retired_.clear();
  events_.clear();
  const StepInFlight& step = in_flight_at(0);
  oldest_in_flight_ = (oldest_in_flight_ + 1) % limits_.max_in_flight;
  --in_flight_count_;
  CHECK(result.id == step.id, "result of step {}, expected {}", result.id, step.id);
  for (const RowInFlight& row : step.rows) {
    Sequence& sequence = *row.sequence;
    CHECK(row.first_output + row.output_count <= static_cast<int32_t>(result.outputs.size()), "step {} has {} outputs",
          result.id, result.outputs.size());
    --sequence.rows_in_flight;
    if (row.state_read >= 0) slots_.release(row.state_read);
    for (int32_t i = 0; i < row.output_count; ++i) {
      take_output(sequence, result.outputs[row.first_output + i]);
    }
    release_when_idle(sequence);
  }
  return events_;
}

void Scheduler::take_output(Sequence& sequence, const ops::SampleResult& result) {
  if (sequence.stage == Stage::kFinished) return;
  const Request& request = sequence.request;
  if (result.numerical_error != 0) {
    events_.push_back(finish(sequence, FinishReason::kNumericalError));
    return;
  }
  const int32_t targets = request.prompt_logprobs ? sequence.prompt_tokens() - 1 : 0;
  if (static_cast<int32_t>(sequence.prompt_logprobs.size()) < targets) {
    sequence.prompt_logprobs.push_back(result);
    return;
  }
  const int32_t index = static_cast<int32_t>(sequence.generated.size());
  if (request.prompt_logprobs && index == 0) {
    events_.push_back({sequence.id, PromptLogprobsEvent{sequence.prompt_logprobs}});
  }
  if (request.score_only) {
    events_.push_back(finish(sequence, FinishReason::kLength));
    return;
  }
  sequence.generated.push_back(result.token);
  sequence.adjustments.generated(result.token);
  --sequence.pending;
  if (sequence.pending == 0) sequence.newest = engine::TokenSource::literal(result.token);
  events_.push_back({sequence.id, TokenEvent{index, result}});
  const auto& stops = request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), result.token) != stops.end()) {
    events_.push_back(finish(sequence, FinishReason::kStop));
  } else if (index + 1 == sequence.max_generated) {
    events_.push_back(finish(sequence, FinishReason::kLength));
  }
}

Event Scheduler::finish(Sequence& sequence, FinishReason reason) {
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
  release_followers(sequence);
  sequence.stage = Stage::kFinished;
  --open_;
  return {sequence.id, FinishEvent{reason, sequence.prompt_tokens(), static_cast<int32_t>(sequence.generated.size())}};
}

// Ends kFinished and kPreempted once no step, in flight or being planned, refers to the sequence.
void Scheduler::release_when_idle(Sequence& sequence) {
  if (sequence.rows_in_flight > 0 || sequence.planned_tokens > 0) return;
  if (sequence.stage != Stage::kFinished && sequence.stage != Stage::kPreempted) return;
  pages_.release(sequence.pages);
  sequence.pages.clear();
  if (sequence.state_slot >= 0) slots_.release(sequence.state_slot);
  sequence.state_slot = -1;
  if (sequence.stage == Stage::kFinished) {
    const auto found = std::ranges::lower_bound(sequences_, sequence.id, {}, [](const auto& one) { return one->id; });
    retired_.push_back(std::move(*found));
    sequences_.erase(found);
    return;
  }
  CHECK(sequence.pending == 0, "sequence {} preempted with {} tokens pending", sequence.id, sequence.pending);
  sequence.stage = Stage::kWaiting;
  sequence.submitted = 0;
  sequence.replay_until = sequence.known_tokens();
  std::erase(running_, &sequence);
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &sequence, arrived_before), &sequence);
}

int64_t Scheduler::pages_held() const {
  std::set<int32_t> held;
  for (const auto& sequence : sequences_) held.insert(sequence->pages.begin(), sequence->pages.end());
  return static_cast<int64_t>(held.size());
}

int64_t Scheduler::slots_held() {
  std::set<int32_t> held = {-1};
  for (const auto& sequence : sequences_) held.insert(sequence->state_slot);
  for (int32_t i = 0; i < in_flight_count_; ++i) {
    for (const RowInFlight& row : in_flight_at(i).rows) held.insert(row.state_read);
  }
  return static_cast<int64_t>(held.size()) - 1;
}

}  // namespace assay::scheduler
