// The bodies and chunks of completions. Pure functions, as in response_parts.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/response_parts.h"

namespace assay::server {

// Log-probabilities in the form of this endpoint: tokens, token_logprobs, top_logprobs and text_offset, a list each.
struct TextLogprobs {
  LogprobList list;
  std::optional<int32_t> first_token;  // of the prompt: its log-probability is null
  int32_t offset = 0;                  // characters of the text before the first token
  size_t echoed = 0;                   // entries, first_token included, that are of the prompt: all of it is shown
  // Whether a generated token's text is shown; others have no length.
  std::function<bool(int32_t)> is_shown;
};

// Characters of the shown text of `logprobs`; what the offset of those after it grows by.
int32_t text_length(const TextLogprobs& logprobs);

struct TextChoice {
  std::string text;
  std::optional<ChoiceFinish> finish;  // none: a chunk before the last one
  const TextLogprobs* logprobs = nullptr;
  const LogprobList* prompt_logprobs = nullptr;
  ChoiceParts parts;  // its logprobs are not used
};

std::string text_chunk(const CompletionHead& head, const TextChoice& choice);
std::string text_usage_chunk(const CompletionHead& head, const Usage& usage);
std::string text_body(const CompletionHead& head, const std::vector<TextChoice>& choices, const Usage& usage);

}  // namespace assay::server
