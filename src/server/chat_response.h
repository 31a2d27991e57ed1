// The bodies and chunks of chat completions. Pure functions; every text they return is valid JSON, whatever the
// numbers: a log-probability that is not finite, or below -9999, reads -9999.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "scheduler/request.h"
#include "server/api_error.h"
#include "text/reasoning_parser.h"

namespace assay::server {

// Constant over one completion.
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

// The log-probabilities of some tokens in a row. token_bytes: the bytes an id stands for.
struct LogprobList {
  std::span<const ops::SampleResult> tokens;
  std::function<std::string_view(int32_t)> token_bytes;
};

struct Finish {
  std::string reason;                      // stop or length
  std::optional<std::string> stop_string;  // the one that matched
};

// Chunks as JSON text. logprobs may be null.
std::string role_chunk(const CompletionHead& head);
std::string reasoning_chunk(const CompletionHead& head, std::string_view text, const LogprobList* logprobs);
std::string content_chunk(const CompletionHead& head, std::string_view text, const LogprobList* logprobs);
std::string finish_chunk(const CompletionHead& head, const Finish& finish, const LogprobList* logprobs);
std::string usage_chunk(const CompletionHead& head, const Usage& usage);

// A whole completion.
std::string completion_body(const CompletionHead& head, const text::TextDelta& message, const Finish& finish,
                            const Usage& usage, const LogprobList* logprobs);

// One server-sent event.
std::string sse_event(std::string_view data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

}  // namespace assay::server
