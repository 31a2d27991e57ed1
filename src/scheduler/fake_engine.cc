#include "scheduler/fake_engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <set>
#include <span>
#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace assay::scheduler {
namespace {

using engine::kPrefillCut;
using engine::Phase;
using engine::Step;
using engine::StepRow;

// The finalizer of splitmix64: every bit of the result depends on every bit of the value.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t mix(uint64_t first, uint64_t second) { return mix(mix(first) ^ second); }

uint64_t extend_hash(uint64_t hash, int32_t token, bool generated) {
  return mix(hash, static_cast<uint64_t>(token) * 2 + (generated ? 1 : 0));
}

float logprob_of(uint64_t hash, int32_t token) {
  return -static_cast<float>(mix(hash, static_cast<uint64_t>(token)) >> 48) / 4096.0f;
}

using AdjustmentList = std::span<const ops::LogitAdjustment>;

// Every adjustment changes the draw, so that a wrong one changes the token.
uint64_t hash_adjustments(uint64_t hash, AdjustmentList adjustments) {
  for (const ops::LogitAdjustment& one : adjustments) {
    hash = mix(hash, static_cast<uint64_t>(one.token));
    hash = mix(hash, uint64_t{std::bit_cast<uint32_t>(one.scale)} << 32 | std::bit_cast<uint32_t>(one.add));
  }
  return hash;
}

bool is_banned(AdjustmentList adjustments, int32_t token) {
  return std::any_of(adjustments.begin(), adjustments.end(),
                     [&](const auto& one) { return one.token == token && one.add < -0.5f * ops::kBannedLogit; });
}

int32_t pick_token(const FakeOptions& options, uint64_t hash, const std::vector<int32_t>& history,
                   const ops::SampleParams& params, AdjustmentList adjustments) {
  if (options.script) return options.script(history, params);
  hash = hash_adjustments(hash, adjustments);
  const uint64_t draw = mix(mix(hash, params.temperature > 0 ? params.seed : 0), params.counter);
  if (is_banned(adjustments, options.eos_token)) {
    return (options.eos_token + 1 + static_cast<int32_t>((draw >> 8) % (options.limits.vocab_size - 1))) %
           options.limits.vocab_size;
  }
  if (options.eos_every > 0 && draw % options.eos_every == 0) return options.eos_token;
  const int32_t token = static_cast<int32_t>((draw >> 8) % options.limits.vocab_size);
  return token == options.eos_token ? (token + 1) % options.limits.vocab_size : token;
}

ops::SampleResult sample(const FakeOptions& options, uint64_t hash, const std::vector<int32_t>& history,
                         const ops::SampleParams& params, AdjustmentList adjustments) {
  ops::SampleResult result{};
  result.token = params.target >= 0 ? params.target : pick_token(options, hash, history, params, adjustments);
  if (params.target < 0 && history.front() == options.fault_prompt_token && params.counter == options.fault_counter) {
    result.token = -1;
    result.numerical_error = 1;
    return result;
  }
  result.logprob = logprob_of(hash, result.token);
  result.top_count = std::min(params.top_logprobs, options.limits.vocab_size);
  for (int32_t i = 0; i < result.top_count; ++i) {
    result.top_ids[i] = (result.token + i) % options.limits.vocab_size;
    result.top_logprobs[i] = result.logprob - static_cast<float>(i);
  }
  return result;
}

bool changes_logits(const Request& request) {
  return request.presence_penalty != 0 || request.frequency_penalty != 0 || request.repetition_penalty != 1 ||
         !request.logit_bias.empty() || request.min_tokens > 0;
}

// From the definition, without the bookkeeping of Adjustments.
std::vector<ops::LogitAdjustment> adjustments_of(const Request& request, int32_t vocabulary,
                                                 const std::vector<int32_t>& generated) {
  std::vector<ops::LogitAdjustment> list;
  for (int32_t token = 0; changes_logits(request) && token < vocabulary; ++token) {
    const auto count = std::count(generated.begin(), generated.end(), token);
    const bool seen = count > 0 || std::count(request.prompt.begin(), request.prompt.end(), token) > 0;
    const bool stops = std::count(request.stop_tokens.begin(), request.stop_tokens.end(), token) > 0;
    ops::LogitAdjustment one{token, seen ? request.repetition_penalty : 1.0f, 0};
    for (const auto& [biased, bias] : request.logit_bias) one.add += biased == token ? bias : 0.0f;
    if (count > 0) one.add -= request.presence_penalty;
    one.add -= request.frequency_penalty * static_cast<float>(count);
    if (stops && static_cast<int32_t>(generated.size()) < request.min_tokens) one.add -= ops::kBannedLogit;
    if (one.scale != 1 || one.add != 0) list.push_back(one);
  }
  return list;
}

ops::SampleParams params_of(const Request& request) {
  return {request.temperature, request.top_k, request.top_p, request.min_p, request.seed, 0, request.top_logprobs};
}

}  // namespace

FakeGeneration fake_generate(const FakeOptions& options, const Request& request) {
  FakeGeneration generation;
  std::vector<int32_t> history;
  uint64_t hash = 0;
  ops::SampleParams params = params_of(request);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    history.push_back(request.prompt[i]);
    hash = extend_hash(hash, request.prompt[i], false);
    if (!request.prompt_logprobs || i + 1 == request.prompt.size()) continue;
    params.target = request.prompt[i + 1];
    generation.prompt_logprobs.push_back(sample(options, hash, history, params, {}));
  }
  params.target = -1;
  const int64_t pool_tokens = static_cast<int64_t>(options.limits.page_count) * options.limits.page_tokens;
  int64_t most = std::min<int64_t>(options.limits.context_tokens, pool_tokens + 1) - history.size();
  if (request.max_tokens > 0) most = std::min<int64_t>(most, request.max_tokens);
  while (true) {
    params.counter = generation.tokens.size();
    const std::vector<ops::LogitAdjustment> adjustments =
        adjustments_of(request, options.limits.vocab_size, generation.tokens);
    const ops::SampleResult result = sample(options, hash, history, params, adjustments);
    if (result.numerical_error != 0) {
      generation.reason = FinishReason::kNumericalError;
      return generation;
    }
    if (request.score_only) return generation;
    generation.tokens.push_back(result.token);
    if (std::count(request.stop_tokens.begin(), request.stop_tokens.end(), result.token) > 0) {
      generation.reason = FinishReason::kStop;
      return generation;
    }
    if (static_cast<int64_t>(generation.tokens.size()) == most) return generation;
    history.push_back(result.token);
    hash = extend_hash(hash, result.token, true);
  }
}

FakeEngine::FakeEngine(FakeOptions options) : options_(std::move(options)) {
  entries_.resize(static_cast<size_t>(options_.limits.page_count) * options_.limits.page_tokens);
  slots_.resize(options_.limits.state_slots);
}

void FakeEngine::submit(const Step& step) {
  CHECK(step.id == last_step_ + 1, "step {} after {}", step.id, last_step_);
  last_step_ = step.id;
  check_sizes(step);
  for (const StepRow& row : step.rows) check_row(step, row);
  check_hazards(step);
  in_flight_.push_back({step, now_us() + options_.latency_us});
}

void FakeEngine::check_sizes(const Step& step) const {
  const engine::EngineLimits& limits = options_.limits;
  CHECK(static_cast<int32_t>(in_flight_.size()) < limits.max_in_flight, "{} steps in flight", in_flight_.size());
  CHECK(!step.rows.empty() && static_cast<int32_t>(step.rows.size()) <= limits.max_step_rows, "{} rows",
        step.rows.size());
  CHECK(static_cast<int32_t>(step.tokens.size()) <= limits.max_step_tokens, "{} tokens", step.tokens.size());
  CHECK(static_cast<int32_t>(step.outputs.size()) <= limits.max_step_outputs, "{} outputs", step.outputs.size());
  CHECK(static_cast<int32_t>(step.adjustments.size()) <= limits.max_step_adjustments, "{} adjustments",
        step.adjustments.size());
  bool prefill_seen = false;
  int32_t next_token = 0;
  for (const StepRow& row : step.rows) {
    CHECK(row.phase == Phase::kPrefill || !prefill_seen, "a decode or verify row after a prefill row");
    prefill_seen = prefill_seen || row.phase == Phase::kPrefill;
    CHECK(row.first_token == next_token, "row starts at token {}, expected {}", row.first_token, next_token);
    next_token += row.token_count;
  }
  CHECK(next_token == static_cast<int32_t>(step.tokens.size()), "rows cover {} of {} tokens", next_token,
        step.tokens.size());
  int32_t last_token = -1;
  for (const engine::OutputRequest& output : step.outputs) {
    CHECK(output.token >= last_token && output.token < next_token, "output of token {} after {}", output.token,
          last_token);
    last_token = output.token;
  }
}

void FakeEngine::check_row(const Step& step, const StepRow& row) const {
  const engine::EngineLimits& limits = options_.limits;
  const int32_t end = row.position + row.token_count;
  CHECK(row.token_count > 0 && row.position >= 0 && end <= limits.context_tokens, "positions {} to {}", row.position,
        end);
  CHECK(row.phase != Phase::kDecode || row.token_count == 1, "decode row of {} tokens", row.token_count);
  // Only the row that ends a prompt may end elsewhere, and no prefill row follows it.
  CHECK(row.phase != Phase::kPrefill || row.position % kPrefillCut == 0, "prefill cut at position {}", row.position);
  CHECK(row.page_count == (end + limits.page_tokens - 1) / limits.page_tokens, "{} pages for {} positions",
        row.page_count, end);
  CHECK(row.first_page >= 0 && row.first_page + row.page_count <= static_cast<int32_t>(step.pages.size()));
  for (int32_t i = 0; i < row.page_count; ++i) {
    const int32_t page = step.pages[row.first_page + i];
    CHECK(page >= 0 && page < limits.page_count, "page {}", page);
  }
  if (limits.state_slots == 0) {
    CHECK(row.state_read == -1 && row.state_write == -1, "slots {} {}", row.state_read, row.state_write);
  } else {
    CHECK((row.state_read == -1) == (row.position == 0), "slot {} read at position {}", row.state_read, row.position);
    CHECK(row.state_read < limits.state_slots && row.state_write >= 0 && row.state_write < limits.state_slots,
          "slots {} {}", row.state_read, row.state_write);
  }
}

// Of pages and slots between the rows of a step, and between a step and the steps in flight.
void FakeEngine::check_hazards(const Step& step) const {
  std::set<int32_t> pages, pages_written, slots_written, slots_read, pages_in_flight, slots_in_flight;
  for (const Pending& pending : in_flight_) {
    pages_in_flight.insert(pending.step.pages.begin(), pending.step.pages.end());
    for (const StepRow& row : pending.step.rows) {
      slots_in_flight.insert(row.state_read);
      slots_in_flight.insert(row.state_write);
    }
  }
  for (const StepRow& row : step.rows) {
    if (row.state_read >= 0) slots_read.insert(row.state_read);
  }
  for (const StepRow& row : step.rows) {
    std::vector<int32_t> held, written;
    for (int32_t i = 0; i < row.page_count; ++i) {
      const int32_t page = step.pages[row.first_page + i];
      const bool writes = (i + 1) * options_.limits.page_tokens > row.position;
      CHECK(!pages_written.contains(page), "page {} written by one row and held by another", page);
      CHECK(!writes || !pages.contains(page), "page {} held by one row and written by another", page);
      (writes ? written : held).push_back(page);
    }
    pages.insert(held.begin(), held.end());
    pages.insert(written.begin(), written.end());
    pages_written.insert(written.begin(), written.end());
    if (row.state_write < 0) continue;
    CHECK(slots_written.insert(row.state_write).second, "two rows write slot {}", row.state_write);
    CHECK(!slots_read.contains(row.state_write), "slot {} written and read in a step", row.state_write);
    CHECK(!slots_in_flight.contains(row.state_write), "slot {} written while in flight", row.state_write);
  }
  for (const int32_t page : step.freed_pages) {
    CHECK(!pages_in_flight.contains(page), "page {} freed while in flight", page);
  }
  for (const int32_t slot : step.freed_slots) {
    CHECK(!slots_in_flight.contains(slot), "slot {} freed while in flight", slot);
    CHECK(!slots_read.contains(slot), "slot {} freed and read", slot);
  }
}

void FakeEngine::poison(const Step& step) {
  const int32_t page_tokens = options_.limits.page_tokens;
  for (const int32_t page : step.freed_pages) {
    CHECK(page >= 0 && page < options_.limits.page_count, "page {}", page);
    std::fill_n(entries_.begin() + static_cast<int64_t>(page) * page_tokens, page_tokens, Entry{});
  }
  for (const int32_t slot : step.freed_slots) {
    CHECK(slot >= 0 && slot < options_.limits.state_slots, "slot {}", slot);
    slots_[slot] = SlotState{};
  }
}

const engine::StepResult& FakeEngine::collect() {
  CHECK(!in_flight_.empty(), "collect with no step in flight");
  const Pending pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  const int64_t wait_us = pending.ready_us - now_us();
  if (wait_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
  poison(pending.step);
  engine::StepResult& result = result_;
  result = {};
  result.id = pending.step.id;
  result.compute_us = options_.latency_us;
  size_t next_output = 0;
  for (const StepRow& row : pending.step.rows) run_row(pending.step, row, result, next_output);
  std::vector<int32_t>& tokens = outputs_[result.id];
  for (const ops::SampleResult& output : result.outputs) {
    tokens.push_back(output.token);
    if (output.numerical_error != 0) result.sentinel = 1;
  }
  while (static_cast<int32_t>(outputs_.size()) > options_.limits.max_in_flight) outputs_.erase(outputs_.begin());
  return result;
}

void FakeEngine::run_row(const Step& step, const StepRow& row, engine::StepResult& result, size_t& next_output) {
  ++rows_run_[static_cast<int>(row.phase)];
  const bool generated = row.phase != Phase::kPrefill;
  std::vector<int32_t> history;
  uint64_t hash = 0;
  uint64_t generated_count = 0;
  for (int32_t position = 0; position < row.position; ++position) {
    const Entry& old = entry(step, row, position);
    CHECK(old.token >= 0, "sequence {} reads poison at position {}", row.sequence, position);
    CHECK(generated || !old.generated, "sequence {} has a prefill row after a generated token", row.sequence);
    history.push_back(old.token);
    hash = extend_hash(hash, old.token, old.generated);
    generated_count += old.generated ? 1 : 0;
  }
  if (row.state_read >= 0) {
    const SlotState& old = slots_[row.state_read];
    CHECK(old.length == row.position && old.hash == hash, "slot {} holds {} positions, not the {} of sequence {}",
          row.state_read, old.length, row.position, row.sequence);
  }
  for (int32_t i = 0; i < row.token_count; ++i) {
    const int32_t token = resolve(step.tokens[row.first_token + i]);
    entry(step, row, row.position + i) = {token, generated};
    history.push_back(token);
    hash = extend_hash(hash, token, generated);
    generated_count += generated ? 1 : 0;
    while (next_output < step.outputs.size() && step.outputs[next_output].token == row.first_token + i) {
      const ops::SampleParams& params = step.outputs[next_output++].params;
      CHECK(params.target >= 0 || params.counter == generated_count, "counter {} of token {}", params.counter,
            generated_count);
      CHECK(params.first_adjustment + params.adjustment_count <= static_cast<int32_t>(step.adjustments.size()),
            "adjustments {} + {}", params.first_adjustment, params.adjustment_count);
      const AdjustmentList adjustments =
          AdjustmentList(step.adjustments).subspan(params.first_adjustment, params.adjustment_count);
      result.outputs.push_back(sample(options_, hash, history, params, adjustments));
    }
  }
  if (row.state_write >= 0) slots_[row.state_write] = {hash, row.position + row.token_count};
}

FakeEngine::Entry& FakeEngine::entry(const Step& step, const StepRow& row, int32_t position) {
  const int32_t page_tokens = options_.limits.page_tokens;
  const int64_t page = step.pages[row.first_page + position / page_tokens];
  return entries_[page * page_tokens + position % page_tokens];
}

int32_t FakeEngine::resolve(const engine::TokenSource& source) const {
  if (source.step == 0) {
    CHECK(source.id >= 0 && source.id < options_.limits.vocab_size, "token {}", source.id);
    return source.id;
  }
  const auto found = outputs_.find(source.step);
  CHECK(found != outputs_.end(), "token of step {}, which is not among the latest", source.step);
  CHECK(source.output >= 0 && source.output < static_cast<int32_t>(found->second.size()), "output {} of step {}",
        source.output, source.step);
  // After a numerical error the row is run for nothing: any token will do.
  return std::max(found->second[source.output], 0);
}

}  // namespace assay::scheduler
