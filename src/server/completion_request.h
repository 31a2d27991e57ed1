// The body of POST /v1/completions, validated and bounded. A pure function of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/generation_options.h"

namespace assay::server {

inline constexpr size_t kMaxPrompts = 1024;
inline constexpr size_t kMaxPromptTokens = size_t{1} << 22;  // of one prompt given as token ids
inline constexpr int32_t kDefaultCompletionTokens = 16;

struct CompletionRequest : GenerationOptions {  // logprobs: N becomes logprobs and top_logprobs N
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // at least one
  bool echo = false;
  int32_t best_of = 1;  // at least n
};

// As parse_chat_request().
MaybeError parse_completion_request(std::string_view text, CompletionRequest& request);

}  // namespace assay::server
