#include "scheduler/loop.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace assay::scheduler {

struct Loop::State {
  struct Arrival {
    uint64_t id = 0;
    Request request;
    std::shared_ptr<RequestSink> sink;
    uint64_t leader = 0;
  };

  State(const engine::EngineLimits& limits, const LoopOptions& options)
      : scheduler(limits, options.max_running), max_open(int64_t{scheduler.max_running()} + options.max_queued) {}

  // Of the engine thread.
  Scheduler scheduler;
  std::unordered_map<uint64_t, std::shared_ptr<RequestSink>> sinks;

  const int64_t max_open;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  std::condition_variable idle_changed;
  std::vector<Arrival> arrivals;
  std::vector<uint64_t> cancels;
  uint64_t last_id = 0;
  int64_t open = 0;  // accepted and not finished
  bool idle = true;  // the engine thread has delivered everything and waits
  bool draining = false;
  bool stopping = false;
  LoopStats stats;

  // Waits for something to do; takes what came in. False: stop.
  bool take(std::vector<Arrival>& new_arrivals, std::vector<uint64_t>& new_cancels);
  // Counts first, so that a client that has seen its finish finds it counted; then calls the sinks, with no lock held.
  void deliver(const std::vector<Event>& events);
  void count(const std::vector<Event>& events);
  void count_step(const engine::StepResult& result);
};

Loop::Loop(engine::Engine& engine, LoopOptions options)
    : engine_(engine), state_(std::make_unique<State>(engine.limits(), options)) {
  CHECK(options.max_queued >= 0, "max_queued {}", options.max_queued);
  state_->stats.pages_total = engine.limits().page_count;
  state_->stats.slots_total = engine.limits().state_slots;
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_one();
  thread_.join();
}

Result<uint64_t> Loop::submit(Request request, std::shared_ptr<RequestSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  ASSAY_ASSIGN(const std::vector<uint64_t> ids, submit_all(std::move(one)));
  return ids[0];
}

Result<std::vector<uint64_t>> Loop::submit_all(std::vector<Submission> submissions) {
  const auto count = static_cast<int64_t>(submissions.size());
  CHECK(count > 0, "no request");
  Result<void> possible = {};
  for (const Submission& one : submissions) {
    CHECK(one.sink != nullptr, "a request without a sink");
    if (possible.ok()) possible = check_request(one.request, engine_.limits());
  }
  std::unique_lock lock(state_->mutex);
  const auto reject = [&](Error error) {
    state_->stats.requests_rejected += count;
    return error;
  };
  if (!possible.ok()) return reject(possible.error());
  if (state_->draining || state_->stopping) {
    return reject({ErrorKind::kResource, "no new requests are taken: shutting down", "queue", "", "", ""});
  }
  if (state_->open + count > state_->max_open) {
    return reject({ErrorKind::kResource, "the queue is full", "queue", fmt::format("{} open requests", state_->open),
                   fmt::format("fewer than {}", state_->max_open - count + 1), "try again later"});
  }
  std::vector<uint64_t> ids;
  for (Submission& one : submissions) {
    CHECK(one.shares_with < static_cast<int32_t>(ids.size()), "request {} shares with {}", ids.size(), one.shares_with);
    const uint64_t leader = one.shares_with < 0 ? 0 : ids[static_cast<size_t>(one.shares_with)];
    ids.push_back(++state_->last_id);
    state_->stats.prompt_tokens_total += static_cast<int64_t>(one.request.prompt.size());
    state_->arrivals.push_back({ids.back(), std::move(one.request), std::move(one.sink), leader});
  }
  state_->open += count;
  state_->stats.requests_total += count;
  state_->stats.waiting += static_cast<int32_t>(count);
  state_->idle = false;
  lock.unlock();
  state_->wake.notify_one();
  return ids;
}

void Loop::cancel(uint64_t id) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->open == 0) return;
    state_->cancels.push_back(id);
  }
  state_->wake.notify_one();
}

bool Loop::drain(int64_t timeout_us) {
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  return state_->idle_changed.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return state_->idle; });
}

LoopStats Loop::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void Loop::run() {
  State& state = *state_;
  Scheduler& scheduler = state.scheduler;
  std::vector<State::Arrival> arrivals;
  std::vector<uint64_t> cancels;
  bool running = true;
  while (running) {
    running = state.take(arrivals, cancels);
    for (State::Arrival& arrival : arrivals) {
      state.sinks.emplace(arrival.id, std::move(arrival.sink));
      scheduler.add(arrival.id, std::move(arrival.request), arrival.leader);
    }
    if (!running) {
      for (const auto& [id, sink] : state.sinks) cancels.push_back(id);
      std::sort(cancels.begin(), cancels.end());
    }
    std::vector<Event> events;
    for (const uint64_t id : cancels) {
      if (auto event = scheduler.cancel(id)) events.push_back(std::move(*event));
    }
    state.deliver(events);
    if (running) {
      while (auto step = scheduler.schedule()) engine_.submit(std::move(*step));
      CHECK(scheduler.open() == 0 || scheduler.in_flight() > 0, "{} open requests and no row can run",
            scheduler.open());
    }
    // The engine outlives the loop: leave no step in it.
    while (scheduler.in_flight() > 0) {
      const engine::StepResult result = engine_.collect();
      events = scheduler.update(result);
      state.count_step(result);
      state.deliver(events);
      if (running) break;
    }
  }
}

bool Loop::State::take(std::vector<Arrival>& new_arrivals, std::vector<uint64_t>& new_cancels) {
  new_arrivals.clear();
  new_cancels.clear();
  std::unique_lock lock(mutex);
  const auto nothing_to_do = [this] { return arrivals.empty() && cancels.empty() && !stopping; };
  if (scheduler.open() == 0 && scheduler.in_flight() == 0 && nothing_to_do()) {
    idle = true;
    idle_changed.notify_all();
    wake.wait(lock, [&] { return !nothing_to_do(); });
  }
  new_arrivals.swap(arrivals);
  new_cancels.swap(cancels);
  return !stopping;
}

void Loop::State::deliver(const std::vector<Event>& events) {
  count(events);
  for (const Event& event : events) {
    const auto found = sinks.find(event.id);
    CHECK(found != sinks.end(), "event of request {}, which has no sink", event.id);
    if (const auto* prompt = std::get_if<PromptLogprobsEvent>(&event.what)) {
      found->second->on_prompt_logprobs(prompt->results);
    } else if (const auto* token = std::get_if<TokenEvent>(&event.what)) {
      found->second->on_token(*token);
    } else {
      const std::shared_ptr<RequestSink> sink = std::move(found->second);
      sinks.erase(found);
      sink->on_finish(std::get<FinishEvent>(event.what));
    }
  }
}

void Loop::State::count(const std::vector<Event>& events) {
  const std::lock_guard lock(mutex);
  for (const Event& event : events) {
    if (std::holds_alternative<TokenEvent>(event.what)) ++stats.generation_tokens_total;
    if (const auto* finish = std::get_if<FinishEvent>(&event.what)) {
      ++stats.requests_finished[static_cast<int>(finish->reason)];
      --open;
    }
  }
  stats.preemptions_total = scheduler.preemptions();
  stats.running = scheduler.running();
  stats.waiting = scheduler.waiting() + static_cast<int32_t>(arrivals.size());
  stats.pages_used = scheduler.pages().used();
  stats.slots_used = scheduler.slots().used();
}

void Loop::State::count_step(const engine::StepResult& result) {
  const std::lock_guard lock(mutex);
  ++stats.steps_total;
  stats.step_us_total += result.compute_us;
  if (result.sentinel != 0) ++stats.non_finite_steps_total;
}

}  // namespace assay::scheduler
