#include "server/completion_request.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

MaybeError read_one_prompt(const Json& prompt, const std::string& where, CompletionRequest& request) {
  if (prompt.is_string()) {
    request.prompts.emplace_back(prompt.get<std::string>());
    return {};
  }
  if (!prompt.is_array()) return wrong_type(where, "a string or a list of token ids", prompt);
  std::vector<int32_t> ids;
  ASSAY_FIELD(read_token_ids(prompt, where, kMaxPromptTokens, ids));
  if (ids.empty()) return invalid_field(where, where + " must hold at least one token id");
  request.prompts.emplace_back(std::move(ids));
  return {};
}

MaybeError read_prompts(const Json& body, CompletionRequest& request) {
  const Json* prompt = member(body, "prompt");
  if (!prompt) return invalid_field("prompt", "prompt is required");
  if (!prompt->is_string() && !prompt->is_array()) {
    return wrong_type("prompt", "a string, a list of strings, a list of token ids or a list of such lists", *prompt);
  }
  if (prompt->is_string()) return read_one_prompt(*prompt, "prompt", request);
  if (prompt->empty()) return invalid_field("prompt", "prompt must not be an empty list");
  if (prompt->front().is_number()) return read_one_prompt(*prompt, "prompt", request);
  if (prompt->size() > kMaxPrompts) {
    return invalid_field("prompt",
                         fmt::format("prompt may hold at most {} prompts, not {}", kMaxPrompts, prompt->size()));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    ASSAY_FIELD(read_one_prompt((*prompt)[i], fmt::format("prompt[{}]", i), request));
  }
  return {};
}

MaybeError read_lengths(const Json& body, CompletionRequest& request) {
  ASSAY_FIELD(read_bool(body, "echo", request.echo));
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  ASSAY_FIELD(
      read_int(body, "max_tokens", request.echo || request.prompt_logprobs ? 0 : 1, kMaxInt, request.max_tokens));
  if (!request.max_tokens) request.max_tokens = kDefaultCompletionTokens;
  if (request.min_tokens > *request.max_tokens) {
    return invalid_field("min_tokens", fmt::format("min_tokens must be at most max_tokens, {}", *request.max_tokens));
  }
  return {};
}

MaybeError read_choices(const Json& body, CompletionRequest& request) {
  std::optional<int32_t> top, best_of;
  ASSAY_FIELD(read_int(body, "logprobs", 0, kMaxTopLogprobs, top));
  request.logprobs = top.has_value();
  request.top_logprobs = top.value_or(0);
  ASSAY_FIELD(read_int(body, "best_of", 1, kMaxChoices, best_of));
  request.best_of = best_of.value_or(request.n);
  if (request.best_of < request.n) {
    return invalid_field("best_of", fmt::format("best_of must be at least n, {}, not {}", request.n, request.best_of));
  }
  if (request.best_of > request.n && request.stream) {
    return invalid_field("best_of", "best_of above n needs stream to be false");
  }
  return {};
}

}  // namespace

MaybeError parse_completion_request(std::string_view text, CompletionRequest& request) {
  Json body;
  ASSAY_FIELD(parse_body(text, body));
  ASSAY_FIELD(read_prompts(body, request));
  ASSAY_FIELD(read_generation_options(body, request));
  ASSAY_FIELD(read_lengths(body, request));
  ASSAY_FIELD(read_choices(body, request));
  if (const Json* suffix = member(body, "suffix"); suffix && *suffix != Json("")) {
    return invalid_field("suffix", "suffix is not supported yet");
  }
  note_ignored_fields(body, {"prompt", "echo", "best_of", "suffix"}, request);
  return {};
}

}  // namespace assay::server
