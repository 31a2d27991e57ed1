// A request to generate tokens, and where its tokens go.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/sample/sample.h"

namespace assay::scheduler {

enum class FinishReason : uint8_t {
  kStop,            // a stop token was generated (it is the last token delivered)
  kLength,          // max_tokens or the context is used up
  kCancelled,       // cancel() was called, or the loop was shut down
  kNumericalError,  // the model's logits were not finite
  kDeadline,        // its time is over
};
inline constexpr int kFinishReasons = 5;

constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kNumericalError:
      return "numerical_error";
    case FinishReason::kDeadline:
      return "deadline";
  }
  return "?";
}

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_tokens = 0;       // 0: as many as the context holds
  std::vector<int32_t> stop_tokens;
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  int32_t top_logprobs = 0;
  bool score_only = false;       // the prompt is run and nothing generated; it may fill the context
  bool prompt_logprobs = false;  // report the log-probability of every prompt token but the first
  // See adjustments.h. Biases are finite; those of one token add up.
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;  // 0.01 .. 100
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t min_tokens = 0;
  int64_t deadline_us = 0;  // on base/clock.h; from then on it is in no new step. 0: none
};

// One generated token. `result.token` is its id.
struct TokenEvent {
  int32_t index = 0;  // 0 for the first generated token
  ops::SampleResult result;
};

struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t generated_tokens = 0;
};

// Receives what a request produces, in order: prompt log-probabilities (when asked for), tokens, one finish. Called on
// the loop's delivery thread (delivery.h), which serves all requests: implementations hand over and return.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void on_prompt_logprobs(std::span<const ops::SampleResult>) {}  // entry i is prompt token i + 1
  virtual void on_token(const TokenEvent& event) = 0;
  virtual void on_finish(const FinishEvent& event) = 0;
};

}  // namespace assay::scheduler
