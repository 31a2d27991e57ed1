// Adjustments: what a request's penalties, biases and minimum length do to the logits of its next token, as the list
// that sample.h defines. Kept up to date token by token.
//
//   presence, frequency   count generated tokens only (OpenAI)
//   repetition            tokens of the prompt and generated ones (Hugging Face)
//   min_tokens            the request's stop tokens are banned until so many tokens are generated
//
// Owner: a Sequence. All memory is taken by the constructor.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/sample.h"
#include "scheduler/request.h"

namespace assay::scheduler {

class Adjustments {
 public:
  Adjustments() = default;
  // most_generated: how many tokens generated() will be told of at most.
  Adjustments(const Request& request, int32_t most_generated);

  // The next list depends on the tokens generated before: no sample can be asked for while one is pending.
  bool needs_history() const { return penalises_; }
  void generated(int32_t token);

  // Of the token with this index; rising by token id.
  void append(int32_t index, std::vector<ops::LogitAdjustment>& list) const;
  // At least as many as append() adds.
  int32_t count() const { return static_cast<int32_t>(entries_.size()); }

 private:
  struct Entry {
    int32_t token = 0;
    float bias = 0;
    int32_t generated = 0;
    bool seen = false;  // in the prompt or generated
    bool stops = false;
  };
  Entry& entry_of(int32_t token);  // of a token that has one

  float presence_ = 0;
  float frequency_ = 0;
  float repetition_ = 1;
  int32_t min_tokens_ = 0;
  bool penalises_ = false;
  std::vector<Entry> entries_;  // rising by token
};

}  // namespace assay::scheduler
