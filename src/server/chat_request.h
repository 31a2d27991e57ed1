// The body of POST /v1/chat/completions, validated and bounded. A pure function of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/api_error.h"

namespace assay::server {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxObjectMembers = 1024;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;  // of one stop string
inline constexpr int kMaxTopLogprobs = 20;

// What a request leaves out stays empty: the server's defaults apply.
struct ChatRequest {
  std::string model;  // may be empty: the served one
  // The template's context: messages, tools if any, add_generation_prompt, and the members of chat_template_kwargs.
  std::shared_ptr<const nlohmann::ordered_json> context;

  std::optional<int32_t> max_tokens;  // max_completion_tokens, else max_tokens; at least 1
  std::optional<float> temperature;   // [0, 2]
  std::optional<float> top_p;         // [0, 1]
  std::optional<float> min_p;         // [0, 1]
  std::optional<int32_t> top_k;       // 0: all
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;  // not empty strings

  bool logprobs = false;
  int32_t top_logprobs = 0;  // 0 .. 20
  bool stream = false;
  bool include_usage = false;

  std::vector<std::string> ignored_fields;  // members of the body without effect here
};

// Fills `request`, or says why it cannot: a 400 that names the field. An optional field that is null counts as left
// out. The role "developer" becomes "system". Depth and members of the JSON are bounded before it is parsed.
std::optional<ApiError> parse_chat_request(std::string_view body, ChatRequest& request);

}  // namespace assay::server
