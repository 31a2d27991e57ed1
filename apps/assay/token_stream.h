// TokenStream: a sink that the thread of a command reads from.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "scheduler/request.h"

namespace assay::app {

// Written by the engine thread, read by one other.
class TokenStream : public scheduler::RequestSink {
 public:
  enum class Next { kToken, kFinished, kTimeout };

  // The next token, as soon as there is one. After kFinished, finish() is set.
  Next next(ops::SampleResult& token, int64_t timeout_us);
  // All tokens that next() has not returned, once the request is done.
  std::vector<ops::SampleResult> wait();

  // Whether the request was done within the time.
  bool done_within(int64_t timeout_us);

  const scheduler::FinishEvent& finish() const { return finish_; }
  const std::vector<ops::SampleResult>& prompt_logprobs() const { return prompt_logprobs_; }

  void on_prompt_logprobs(std::span<const ops::SampleResult> results) override;
  void on_token(const scheduler::TokenEvent& event) override;
  void on_finish(const scheduler::FinishEvent& event) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ops::SampleResult> tokens_;
  std::vector<ops::SampleResult> prompt_logprobs_;
  scheduler::FinishEvent finish_;
  bool finished_ = false;
};

}  // namespace assay::app
