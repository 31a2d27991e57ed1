// The planning half of Scheduler: admission, what goes into a step, preemption.
#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace assay::scheduler {

using engine::kPrefillCut;
using engine::Step;
using engine::TokenSource;

const Step* Scheduler::schedule() {
  if (in_flight() >= limits_.max_in_flight) return nullptr;
  admit();
  Plan plan{limits_.max_step_tokens, limits_.max_step_rows, limits_.max_step_outputs, limits_.max_step_adjustments};
  rows_.clear();
  by_last_service(false, units_);
  bool unit_planned = false;
  if (unit_blocked_) {
    for (size_t i = 0; i < units_.size() && !unit_planned; ++i) unit_planned = extend(plan, *units_[i]);
  }
  by_last_service(true, decoding_);
  for (Sequence* sequence : decoding_) extend(plan, *sequence);
  // Unit by unit in turn: a long prompt shares the step with short ones.
  unit_blocked_ = !units_.empty() && !unit_planned;
  while (!units_.empty()) {
    std::erase_if(units_, [&](Sequence* sequence) { return !extend(plan, *sequence); });
    if (!units_.empty()) unit_blocked_ = false;
  }
  if (rows_.empty()) return nullptr;
  emit();
  return &step_;
}

// In order of arrival, while the pages suffice for all tokens that the admitted ones know, and for one more page each:
// the watermark that keeps a newcomer from being preempted at once. Alone, a sequence needs no watermark. Nobody comes
// in while one is on its way out: its pages are for an earlier one, and it goes back before those never admitted. So
// the running ones are those that arrived first.
void Scheduler::admit() {
  while (!waiting_.empty() && running() < max_running_ && !preempting()) {
    Sequence& sequence = *waiting_.front();
    int32_t wanted = pages_.pages_for(sequence.known_tokens()) + pages_promised() + running();
    if (sequence.leader != nullptr) wanted -= sequence.leader->fork_at / limits_.page_tokens;
    if (!running_.empty() && wanted > pages_.free()) return;
    CHECK(running_.empty() || running_.back()->id < sequence.id, "sequence {} runs before {}", running_.back()->id,
          sequence.id);
    waiting_.erase(waiting_.begin());
    sequence.stage = Stage::kRunning;
    sequence.last_service = ++services_;  // behind those that wait for their turn: a stream of newcomers starves nobody
    running_.push_back(&sequence);
  }
}

bool Scheduler::preempting() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const Sequence* sequence) { return sequence->stage == Stage::kPreempted; });
}

// Pages that running sequences will take for tokens they already know.
int32_t Scheduler::pages_promised() const {
  int32_t count = 0;
  for (const Sequence* sequence : running_) {
    int32_t missing = pages_.pages_for(sequence->known_tokens()) - static_cast<int32_t>(sequence->pages.size());
    if (sequence->leader != nullptr) missing -= sequence->leader->fork_at / limits_.page_tokens;
    if (sequence->stage == Stage::kRunning) count += std::max(missing, 0);
  }
  return count;
}

void Scheduler::by_last_service(bool decoding, std::vector<Sequence*>& sequences) const {
  sequences.clear();
  for (Sequence* sequence : running_) {
    if (sequence->runnable() && sequence->decoding() == decoding) sequences.push_back(sequence);
  }
  std::sort(sequences.begin(), sequences.end(),
            [](const Sequence* a, const Sequence* b) { return a->last_service < b->last_service; });
}

// Plans one more unit of the sequence: its decode token, or up to the next cut of its prompt or replay. False: the
// phase ends, or something is short.
bool Scheduler::extend(Plan& plan, Sequence& sequence) {
  if (sequence.stage != Stage::kRunning) return false;
  const int32_t begin = sequence.submitted + sequence.planned_tokens;
  int32_t end = std::min((begin / kPrefillCut + 1) * kPrefillCut, sequence.phase_end());
  if (sequence.phase() == engine::Phase::kVerify) end = std::min(end, begin + plan.tokens_left);
  if (begin >= end || end - begin > plan.tokens_left) return false;
  const int32_t outputs = sequence.targets_in(begin, end) + (sequence.samples_at(end) ? 1 : 0);
  if (outputs > plan.outputs_left) return false;
  const int32_t adjustments = sequence.samples_at(end) ? sequence.adjustments.count() : 0;
  if (adjustments > plan.adjustments_left) return false;
  const bool opens_row = sequence.planned_tokens == 0;
  if (opens_row && plan.rows_left == 0) return false;
  if (opens_row && slots_.total() > 0 && slots_.free() == 0) return false;
  if (!ensure_pages(sequence, end)) return false;
  if (opens_row) {
    if (slots_.total() > 0) sequence.planned_slot = slots_.allocate();
    --plan.rows_left;
    rows_.push_back(&sequence);
  }
  sequence.planned_tokens += end - begin;
  plan.tokens_left -= end - begin;
  plan.outputs_left -= outputs;
  plan.adjustments_left -= adjustments;
  return true;
}

// Takes pages until the sequence has them for [0, positions), preempting later arrivals. False: not in this step.
bool Scheduler::ensure_pages(Sequence& sequence, int32_t positions) {
  const int32_t missing = pages_.pages_for(positions) - static_cast<int32_t>(sequence.pages.size());
  if (missing <= 0) return true;
  while (pages_.free() < missing) {
    if (preempting()) return false;  // its pages come back soon: no need for another victim yet
    Sequence* victim = running_.back();
    if (victim == &sequence) return false;
    preempt(*victim);
  }
  return pages_.allocate(missing, sequence.pages);
}

void Scheduler::preempt(Sequence& sequence) {
  release_followers(sequence);
  sequence.stage = Stage::kPreempted;
  if (!sequence.pages.empty()) ++preemptions_;  // else it had not begun, and only goes back to its place in the queue
  release_when_idle(sequence);
}

// Decode and verify rows, then prefill rows.
void Scheduler::emit() {
  step_.clear();
  step_.id = ++last_step_;
  StepInFlight& record = in_flight_at(in_flight_count_++);
  record.id = step_.id;
  record.rows.clear();
  const auto is_prefill = [](const Sequence* sequence) { return sequence->phase() == engine::Phase::kPrefill; };
  units_.clear();
  std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(units_), is_prefill);
  std::erase_if(rows_, is_prefill);
  for (Sequence* sequence : rows_) emit_row(record, *sequence);
  for (Sequence* sequence : units_) emit_row(record, *sequence);
  pages_.collect_freed(step_.freed_pages);
  slots_.collect_freed(step_.freed_slots);
}

void Scheduler::emit_row(StepInFlight& record, Sequence& sequence) {
  Step& step = step_;
  const Request& request = sequence.request;
  const int32_t begin = sequence.submitted;
  const int32_t end = begin + sequence.planned_tokens;
  const int32_t prompt_tokens = sequence.prompt_tokens();
  const int32_t page_count = pages_.pages_for(end);
  const int32_t first_token = static_cast<int32_t>(step.tokens.size());
  const int32_t first_output = static_cast<int32_t>(step.outputs.size());
  step.rows.push_back({sequence.id, sequence.phase(), first_token, end - begin, begin,
                       static_cast<int32_t>(step.pages.size()), page_count, sequence.state_slot,
                       sequence.planned_slot});
  step.pages.insert(step.pages.end(), sequence.pages.begin(), sequence.pages.begin() + page_count);

  ops::SampleParams params{request.temperature, request.top_k,
                           request.top_p,       request.min_p,
                           request.seed,        static_cast<uint64_t>(sequence.known_tokens() - prompt_tokens),
                           request.top_logprobs};
  const int32_t targets_end = sequence.targets_requested + sequence.targets_in(begin, end);
  for (int32_t position = begin; position < end; ++position) {
    if (position < prompt_tokens) {
      step.tokens.push_back(TokenSource::literal(request.prompt[position]));
    } else if (position < sequence.replay_until) {
      step.tokens.push_back(TokenSource::literal(sequence.generated[position - prompt_tokens]));
    } else {
      step.tokens.push_back(sequence.newest);
    }
    if (position >= sequence.targets_requested && position < targets_end) {
      ops::SampleParams target = params;
      target.target = request.prompt[position + 1];
      step.outputs.push_back({first_token + position - begin, target});
    }
  }
  sequence.targets_requested = targets_end;
  if (sequence.samples_at(end)) {
    sequence.newest = TokenSource::of(step.id, static_cast<int32_t>(step.outputs.size()));
    params.first_adjustment = static_cast<int32_t>(step.adjustments.size());
    sequence.adjustments.append(static_cast<int32_t>(params.counter), step.adjustments);
    params.adjustment_count = static_cast<int32_t>(step.adjustments.size()) - params.first_adjustment;
    step.outputs.push_back({first_token + end - begin - 1, params});
    ++sequence.pending;
  }
  record.rows.push_back(
      {&sequence, sequence.state_slot, first_output, static_cast<int32_t>(step.outputs.size()) - first_output});
  sequence.state_slot = sequence.planned_slot;
  sequence.planned_slot = -1;
  sequence.planned_tokens = 0;
  sequence.submitted = end;
  if (sequence.first_follower != nullptr && end == sequence.fork_at) share_prefill(sequence);
  sequence.last_service = ++services_;
  ++sequence.rows_in_flight;
}

}  // namespace assay::scheduler
