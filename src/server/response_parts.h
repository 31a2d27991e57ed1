// What the bodies and chunks of both endpoints are made of. Pure functions; every text they return is valid JSON,
// whatever the numbers: a log-probability that is not finite, or below -9999, reads -9999.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ops/sample/sample.h"
#include "server/choice.h"

namespace assay::server {

// Constant over one answer.
struct CompletionHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t reasoning_tokens = 0;
};

using TokenBytes = std::function<std::string_view(int32_t)>;  // the bytes an id stands for

// The log-probabilities of some tokens in a row.
struct LogprobList {
  std::span<const ops::SampleResult> tokens;
  TokenBytes token_bytes;
  int32_t alternatives = kMaxTopLogprobs;  // at most so many of those reported are shown
};

// What a chunk or choice holds beside its text. Null: left out.
struct ChoiceParts {
  int32_t index = 0;
  const LogprobList* logprobs = nullptr;
  const std::vector<int32_t>* token_ids = nullptr;
  const std::vector<int32_t>* prompt_token_ids = nullptr;
};

std::string dump_json(const nlohmann::ordered_json& json);
double json_logprob(float logprob);
nlohmann::ordered_json head_json(const CompletionHead& head, const char* object);
nlohmann::ordered_json usage_json(const Usage& usage);
// The stop string, the id of the stop token, or null.
nlohmann::ordered_json stop_reason_json(const ChoiceFinish& finish);

// One entry a prompt token: null for the first, then {id: {"logprob", "rank", "decoded_token"}} of the token and its
// alternatives. rank counts from 1; null for a token that is not among the alternatives reported.
nlohmann::ordered_json prompt_logprobs_json(const LogprobList& list);

// One server-sent event.
std::string sse_event(std::string_view data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

}  // namespace assay::server
