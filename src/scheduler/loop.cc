#include "scheduler/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "scheduler/delivery.h"
#include "scheduler/scheduler.h"

namespace assay::scheduler {

namespace {

// Open requests that memory is reserved for; the queue of a whole data set grows as it fills.
int32_t reserved_for(const LoopOptions& options) {
  constexpr int64_t kMost = 4096;
  return static_cast<int32_t>(std::min(int64_t{options.max_running} + options.max_queued, kMost));
}

}  // namespace

struct Loop::State {
  struct Arrival {
    std::unique_ptr<Sequence> sequence;
    uint64_t leader = 0;
  };

  State(const engine::EngineLimits& limits, const LoopOptions& options)
      : scheduler(limits, options.max_running, reserved_for(options)),
        max_open(int64_t{scheduler.max_running()} + options.max_queued) {}

  Scheduler scheduler;  // of the engine thread
  Delivery delivery;

  const int64_t max_open;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  std::condition_variable idle_changed;
  std::vector<Arrival> arrivals;
  std::vector<uint64_t> cancels;
  uint64_t last_id = 0;
  int64_t open = 0;  // accepted and not finished
  bool idle = true;  // the engine thread has pushed everything and waits
  bool draining = false;
  bool stopping = false;
  LoopStats stats;

  // Waits for something to do; takes what came in. False: stop.
  bool take(std::vector<Arrival>& new_arrivals, std::vector<uint64_t>& new_cancels);
  // Counts first, so that a client that has seen its finish finds it counted.
  void publish(std::span<const Event> events);
  void count(std::span<const Event> events);
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
  std::vector<State::Arrival> arrivals;
  for (Submission& one : submissions) {
    if (possible.ok()) arrivals.push_back({make_sequence(0, std::move(one.request), engine_.limits())});
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
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const int32_t shares_with = submissions[i].shares_with;
    CHECK(shares_with < static_cast<int32_t>(i), "request {} shares with {}", i, shares_with);
    arrivals[i].leader = shares_with < 0 ? 0 : ids[static_cast<size_t>(shares_with)];
    ids.push_back(arrivals[i].sequence->id = ++state_->last_id);
    state_->stats.prompt_tokens_total += arrivals[i].sequence->prompt_tokens();
    state_->delivery.add(ids.back(), std::move(submissions[i].sink));
    state_->arrivals.push_back(std::move(arrivals[i]));
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
  const int64_t end_us = now_us() + timeout_us;
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  const auto timeout = std::chrono::microseconds(timeout_us);
  if (!state_->idle_changed.wait_for(lock, timeout, [this] { return state_->idle; })) return false;
  lock.unlock();
  return state_->delivery.flush(end_us - now_us());
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
    for (State::Arrival& arrival : arrivals) scheduler.add(std::move(arrival.sequence), arrival.leader);
    for (const uint64_t id : cancels) {
      if (const auto event = scheduler.cancel(id)) state.publish({&*event, 1});
    }
    state.publish(running ? scheduler.expire(now_us()) : scheduler.cancel_all());
    if (running) {
      while (const engine::Step* step = scheduler.schedule()) engine_.submit(*step);
      CHECK(scheduler.open() == 0 || scheduler.in_flight() > 0, "{} open requests and no row can run",
            scheduler.open());
    }
    // The engine outlives the loop: leave no step in it.
    while (scheduler.in_flight() > 0) {
      const engine::StepResult& result = engine_.collect();
      const std::span<const Event> events = scheduler.update(result);
      state.count_step(result);
      state.publish(events);
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

void Loop::State::publish(std::span<const Event> events) {
  count(events);
  delivery.push(events, scheduler.retired());
}

void Loop::State::count(std::span<const Event> events) {
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
