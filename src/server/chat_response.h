// The bodies and chunks of chat completions. Pure functions, as in response_parts.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/response_parts.h"

namespace assay::server {

// Chunks as JSON text. Prompt token ids go with the role.
std::string role_chunk(const CompletionHead& head, const ChoiceParts& parts);
std::string reasoning_chunk(const CompletionHead& head, std::string_view text, const ChoiceParts& parts);
std::string content_chunk(const CompletionHead& head, std::string_view text, const ChoiceParts& parts);
// The start of a tool call, its arguments still empty; then fragments of them.
std::string tool_call_chunk(const CompletionHead& head, int32_t call, std::string_view id, std::string_view name,
                            const ChoiceParts& parts);
std::string arguments_chunk(const CompletionHead& head, int32_t call, std::string_view fragment,
                            const ChoiceParts& parts);
std::string finish_chunk(const CompletionHead& head, const ChoiceFinish& finish, const ChoiceParts& parts);
std::string usage_chunk(const CompletionHead& head, const Usage& usage);

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

struct ChatChoice {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
  ChoiceFinish finish;
  ChoiceParts parts;
};

// A whole answer. prompt_logprobs, and the prompt_token_ids of the first choice: null when not asked for.
std::string completion_body(const CompletionHead& head, const std::vector<ChatChoice>& choices, const Usage& usage,
                            const LogprobList* prompt_logprobs = nullptr);

}  // namespace assay::server
