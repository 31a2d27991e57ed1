// What /metrics shows, in Prometheus' text format: vLLM's names and meanings, with the prefix "assay:".
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "scheduler/loop.h"

namespace assay::server {

enum class Outcome { kStop, kLength, kAbort, kError };

// Thread-safe.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);  // the label model_name of every series
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  // An accepted request is over, `seconds` after it arrived.
  void observe_finished(Outcome outcome, double seconds, int32_t prompt_tokens, int32_t generated_tokens);
  void count_response(int status);

  // loop_stats: null while no model is loaded; its series then read 0.
  std::string text(const scheduler::LoopStats* loop_stats) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace assay::server
