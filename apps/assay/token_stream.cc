#include "assay/token_stream.h"

#include <chrono>

namespace assay::app {

TokenStream::Next TokenStream::next(ops::SampleResult& token, int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return finished_ || !tokens_.empty(); });
  if (!tokens_.empty()) {
    token = tokens_.front();
    tokens_.pop_front();
    return Next::kToken;
  }
  return finished_ ? Next::kFinished : Next::kTimeout;
}

std::vector<ops::SampleResult> TokenStream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_; });
  std::vector<ops::SampleResult> all(tokens_.begin(), tokens_.end());
  tokens_.clear();
  return all;
}

bool TokenStream::done_within(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return finished_; });
}

void TokenStream::on_prompt_logprobs(std::span<const ops::SampleResult> results) {
  std::lock_guard lock(mutex_);
  prompt_logprobs_.insert(prompt_logprobs_.end(), results.begin(), results.end());
}

void TokenStream::on_token(const scheduler::TokenEvent& event) {
  std::lock_guard lock(mutex_);
  tokens_.push_back(event.result);
  changed_.notify_one();
}

void TokenStream::on_finish(const scheduler::FinishEvent& event) {
  std::lock_guard lock(mutex_);
  finish_ = event;
  finished_ = true;
  changed_.notify_one();
}

}  // namespace assay::app
