// Loop: the engine thread. Takes requests from any thread, schedules them on the engine, hands tokens to the delivery
// thread, which calls their sinks.
//
//   while work:  engine.submit(scheduler.schedule()) as often as steps may be in flight;
//   delivery.push(scheduler.update(engine.collect()))
//
// The engine thread neither allocates nor frees: submit() makes what a request needs, the delivery frees it.
//
// Owner: the server or a command; the engine outlives the loop, and holds no step of it afterwards. submit(), cancel(),
// drain() and stats() are thread-safe, and sinks may call them but drain(): no lock is held while a sink runs. A
// cancelled request, or one whose deadline is over, is out of the step after those in flight, and its sink gets
// on_finish(kCancelled or kDeadline). Idle: sleeps on a condition variable.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "scheduler/request.h"

namespace assay::scheduler {

struct LoopOptions {
  // Requests waiting for a place among the running ones: open ones beyond max_running, so that whether one is refused
  // does not depend on how soon the engine thread wakes. Scarce pages can make more of the open ones wait.
  int32_t max_queued = 256;
  // Sequences that hold pages and state; fewer where state slots are fewer than two for each.
  int32_t max_running = 64;
};

// Counters since start, and gauges of now.
struct LoopStats {
  int64_t requests_total = 0;
  int64_t requests_finished[kFinishReasons] = {};  // by FinishReason
  int64_t requests_rejected = 0;
  int64_t prompt_tokens_total = 0;
  int64_t generation_tokens_total = 0;
  int64_t steps_total = 0;
  int64_t step_us_total = 0;
  int64_t preemptions_total = 0;
  int64_t non_finite_steps_total = 0;  // steps whose sentinel was raised
  int32_t running = 0;
  int32_t waiting = 0;  // preempted ones too
  int32_t pages_used = 0;
  int32_t pages_total = 0;
  int32_t slots_used = 0;
  int32_t slots_total = 0;
};

// One request of several that are accepted together.
struct Submission {
  Request request;
  std::shared_ptr<RequestSink> sink;
  int32_t shares_with = -1;  // an earlier one of them with the same prompt, whose prefill it may use
};

class Loop {
 public:
  Loop(engine::Engine& engine, LoopOptions options);
  ~Loop();  // cancels what is left, joins
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Errors: kInvalidArgument (empty prompt, an id outside the vocabulary, prompt as long as the context: got and wanted
  // hold both numbers, more than the page pool can ever hold, a parameter out of range, prompt_logprobs where a step
  // has too few outputs), kResource (the queue is full, or draining). max_tokens beyond the context ends with kLength
  // there.
  Result<uint64_t> submit(Request request, std::shared_ptr<RequestSink> sink);
  // All or none. The ids, rising.
  Result<std::vector<uint64_t>> submit_all(std::vector<Submission> submissions);
  void cancel(uint64_t id);  // unknown or finished ids are ignored

  // No new requests from now on; returns true when all are done and their sinks called, false when the time is over
  // first.
  bool drain(int64_t timeout_us);
  LoopStats stats() const;
  const engine::EngineLimits& limits() const { return engine_.limits(); }

 private:
  struct State;
  void run();

  engine::Engine& engine_;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace assay::scheduler
