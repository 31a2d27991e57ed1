#include "scheduler/scheduler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

namespace assay::scheduler {
namespace {

// A running sequence keeps one slot and takes another per row; with one per sequence to spare no row waits for a slot
// when nothing is in flight.
int32_t running_limit(const engine::EngineLimits& limits, int32_t max_running) {
  if (limits.state_slots == 0) return max_running;
  return std::min(max_running, limits.state_slots / 2);
}

int32_t generation_limit(const Request& request, const engine::EngineLimits& limits) {
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t pool_tokens = static_cast<int64_t>(limits.page_count) * limits.page_tokens;
  // Without a wish of the request the pool is a limit like the context; the last token needs no position in it.
  const int64_t room = std::min<int64_t>(limits.context_tokens, pool_tokens + 1) - prompt_tokens;
  return static_cast<int32_t>(request.max_tokens > 0 ? std::min<int64_t>(request.max_tokens, room) : room);
}

bool arrived_before(const Sequence* a, const Sequence* b) { return a->id < b->id; }

}  // namespace

Scheduler::Scheduler(const engine::EngineLimits& limits, int32_t max_running)
    : limits_(limits),
      pages_(limits.page_count, limits.page_tokens),
      slots_(limits.state_slots),
      max_running_(running_limit(limits, max_running)) {
  CHECK(max_running > 0, "max_running {}", max_running);
  CHECK(limits.max_step_tokens >= engine::kPrefillCut, "steps of {} tokens hold no prefill unit of {}",
        limits.max_step_tokens, engine::kPrefillCut);
  CHECK(limits.max_step_rows > 0 && limits.max_step_outputs > 0 && limits.max_in_flight > 0, "{} rows, {} outputs, {}",
        limits.max_step_rows, limits.max_step_outputs, limits.max_in_flight);
  CHECK(limits.state_slots == 0 || limits.state_slots >= 2, "{} state slots", limits.state_slots);
}

void Scheduler::add(uint64_t id, Request request, uint64_t leader) {
  CHECK(id > last_id_, "request {} after {}", id, last_id_);
  const Result<void> possible = check_request(request, limits_);
  CHECK(possible.ok(), "request {}: {}", id, possible.error().message());
  last_id_ = id;
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->max_generated = generation_limit(request, limits_);
  sequence->request = std::move(request);
  sequence->adjustments = Adjustments(sequence->request);
  const auto found = sequences_.find(leader);
  if (found != sequences_.end()) follow(*sequence, *found->second);
  waiting_.push_back(sequence.get());
  sequences_.emplace(id, std::move(sequence));
  ++open_;
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
  first.followers.push_back(&sequence);
  first.fork_at = fork_at;
}

// The leader's row that ends at fork_at is in the step being planned, and the slot that it writes is its state_slot.
void Scheduler::share_prefill(Sequence& leader) {
  for (Sequence* follower : leader.followers) {
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
  leader.followers.clear();
}

// From both ends: the sequence leads and follows no more.
void Scheduler::release_followers(Sequence& sequence) {
  for (Sequence* follower : sequence.followers) follower->leader = nullptr;
  sequence.followers.clear();
  if (sequence.leader != nullptr) std::erase(sequence.leader->followers, &sequence);
  sequence.leader = nullptr;
}

std::optional<Event> Scheduler::cancel(uint64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->stage == Stage::kFinished) return std::nullopt;
  Event event = finish(*found->second, FinishReason::kCancelled);
  release_when_idle(*found->second);
  return event;
}

std::vector<Event> Scheduler::update(const engine::StepResult& result) {
  CHECK(!in_flight_.empty(), "result of step {} with no step in flight", result.id);
  const StepInFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  CHECK(result.id == step.id, "result of step {}, expected {}", result.id, step.id);
  std::vector<Event> events;
  for (const RowInFlight& row : step.rows) {
    Sequence& sequence = *row.sequence;
    CHECK(row.first_output + row.output_count <= static_cast<int32_t>(result.outputs.size()), "step {} has {} outputs",
          result.id, result.outputs.size());
    --sequence.rows_in_flight;
    if (row.state_read >= 0) slots_.release(row.state_read);
    for (int32_t i = 0; i < row.output_count; ++i) {
      take_output(sequence, result.outputs[row.first_output + i], events);
    }
    release_when_idle(sequence);
  }
  return events;
}

void Scheduler::take_output(Sequence& sequence, const ops::SampleResult& result, std::vector<Event>& events) {
  if (sequence.stage == Stage::kFinished) return;
  const Request& request = sequence.request;
  if (result.numerical_error != 0) {
    events.push_back(finish(sequence, FinishReason::kNumericalError));
    return;
  }
  const int32_t targets = request.prompt_logprobs ? sequence.prompt_tokens() - 1 : 0;
  if (static_cast<int32_t>(sequence.prompt_logprobs.size()) < targets) {
    sequence.prompt_logprobs.push_back(result);
    return;
  }
  const int32_t index = static_cast<int32_t>(sequence.generated.size());
  if (request.prompt_logprobs && index == 0) {
    events.push_back({sequence.id, PromptLogprobsEvent{sequence.prompt_logprobs}});
  }
  sequence.generated.push_back(result.token);
  sequence.adjustments.generated(result.token);
  --sequence.pending;
  if (sequence.pending == 0) sequence.newest = engine::TokenSource::literal(result.token);
  events.push_back({sequence.id, TokenEvent{index, result}});
  const auto& stops = request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), result.token) != stops.end()) {
    events.push_back(finish(sequence, FinishReason::kStop));
  } else if (index + 1 == sequence.max_generated) {
    events.push_back(finish(sequence, FinishReason::kLength));
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
    sequences_.erase(sequence.id);
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
  for (const auto& [id, sequence] : sequences_) held.insert(sequence->pages.begin(), sequence->pages.end());
  return static_cast<int64_t>(held.size());
}

int64_t Scheduler::slots_held() const {
  std::set<int32_t> held = {-1};
  for (const auto& [id, sequence] : sequences_) held.insert(sequence->state_slot);
  for (const StepInFlight& step : in_flight_) {
    for (const RowInFlight& row : step.rows) held.insert(row.state_read);
  }
  return static_cast<int64_t>(held.size()) - 1;
}

}  // namespace assay::scheduler
