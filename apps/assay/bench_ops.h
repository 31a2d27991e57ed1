// Times of the ops of a step, inside the engine: what each call takes, moves and computes.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/limits.h"
#include "backend/timestamps.h"
#include "base/result.h"
#include "ops/batch.h"
#include "ops/observer.h"

namespace assay::app {

// All calls of one op with one Desc and one row.
struct OpTiming {
  std::string op, desc, row;
  // Of all calls together:
  int64_t calls = 0;
  int64_t launches = 0;  // kernels; 0 on a CPU
  double us = 0;
  ops::Work work;
};

struct Roof {
  double bytes_per_s = 0;
  double flop_per_s = 0;

  // The least time that the limits allow.
  double least_us(const ops::Work& work) const {
    return 1e6 * std::max(work.bytes / bytes_per_s, work.flops / flop_per_s);
  }
};

// The ops of one prefill, or of one decode step, and what it takes as a whole, timed right before them.
struct OpTable {
  ops::Phase phase = ops::Phase::kDecode;
  int32_t context = 0;  // prefill: tokens of the prompt; decode: tokens before the step
  int32_t batch = 1;    // sequences
  double tokens_per_s = 0;
  std::vector<OpTiming> ops;
  backend::Limits limits;  // the best of right before and right after
  Roof roof;               // of these limits

  std::string title() const;
  double whole_us() const { return 1e6 * (phase == ops::Phase::kPrefill ? context : batch) / tokens_per_s; }
  double us() const;        // of all ops
  double least_us() const;  // that the limits allow all ops, one after the other
};

// Told of the ops by the engine (engine::load_observed); idle outside measure().
class OpTimer : public ops::OpObserver {
 public:
  void before(const ops::OpCall& call) override;
  void after(const ops::OpCall& call) override;
  std::optional<uint64_t> capture_key() const override;

  // Runs `steps`, which must enqueue the same ops each time, on `device`: once to note the work, once to warm up, then
  // `repeats` times; the time of a call is its median. By falling time.
  Result<std::vector<OpTiming>> measure(device::Device& device, int32_t repeats,
                                        const std::function<Result<void>()>& steps);

 private:
  enum class Mode : uint8_t { kIdle, kNote, kTime };

  Result<void> run(Mode mode, const std::function<Result<void>()>& steps);

  Mode mode_ = Mode::kIdle;
  uint64_t measurements_ = 0;  // a graph captured for one marks the points of that one
  ops::ReadInts read_;
  std::unique_ptr<backend::Timestamps> stamps_;  // two a call
  std::vector<OpTiming> calls_;                  // one call each, in the order of the steps
  size_t next_ = 0;                              // of calls_, as ops are enqueued
  uint64_t launches_before_ = 0;
};

}  // namespace assay::app
