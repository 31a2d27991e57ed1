#include <algorithm>
#include <cmath>

#include "scheduler/scheduler.h"

namespace assay::scheduler {
namespace {

Error invalid(std::string where, std::string what, std::string got, std::string wanted) {
  return {ErrorKind::kInvalidArgument, std::move(what), std::move(where), std::move(got), std::move(wanted), ""};
}

Result<void> check_prompt(const Request& request, const engine::EngineLimits& limits) {
  if (request.prompt.empty()) return invalid("prompt", "empty prompt", "0 tokens", "at least 1 token");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= limits.vocab_size) {
      return invalid("prompt", "token id outside the vocabulary", std::to_string(token),
                     fmt::format("0 to {}", limits.vocab_size - 1));
    }
  }
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int32_t most = limits.context_tokens - (request.score_only ? 0 : 1);
  if (prompt_tokens > most) {
    return invalid(
        "prompt",
        request.score_only ? "prompt exceeds the context" : "prompt does not leave room for a token in the context",
        fmt::format("{} tokens", prompt_tokens), fmt::format("at most {} tokens", most));
  }
  return {};
}

// The last generated token is never run, so it needs no position.
int64_t most_positions(const Request& request, const engine::EngineLimits& limits) {
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (request.score_only) return prompt_tokens;
  return std::min<int64_t>(prompt_tokens + std::max(request.max_tokens, 1), limits.context_tokens) - 1;
}

Result<void> check_pages(const Request& request, const engine::EngineLimits& limits) {
  const int64_t positions = most_positions(request, limits);
  const int64_t pool_tokens = static_cast<int64_t>(limits.page_count) * limits.page_tokens;
  if (positions <= pool_tokens) return {};
  return invalid("prompt", "prompt and generated tokens exceed the whole pool of KV pages",
                 fmt::format("{} positions", positions), fmt::format("at most {} positions", pool_tokens));
}

Result<void> check_adjustments(const Request& request, const engine::EngineLimits& limits) {
  if (!std::isfinite(request.presence_penalty) || !std::isfinite(request.frequency_penalty)) {
    return invalid("presence_penalty, frequency_penalty", "penalty is not finite",
                   fmt::format("{}, {}", request.presence_penalty, request.frequency_penalty), "finite numbers");
  }
  if (!(request.repetition_penalty >= 0.01f && request.repetition_penalty <= 100)) {
    return invalid("repetition_penalty", "penalty out of range", std::to_string(request.repetition_penalty),
                   "0.01 to 100");
  }
  for (const auto& [token, bias] : request.logit_bias) {
    if (token < 0 || token >= limits.vocab_size) {
      return invalid("logit_bias", "token id outside the vocabulary", std::to_string(token),
                     fmt::format("0 to {}", limits.vocab_size - 1));
    }
    if (!std::isfinite(bias))
      return invalid("logit_bias", "bias is not finite", std::to_string(bias), "finite numbers");
  }
  for (const int32_t token : request.stop_tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      return invalid("stop_token_ids", "token id outside the vocabulary", std::to_string(token),
                     fmt::format("0 to {}", limits.vocab_size - 1));
    }
  }
  return {};
}

}  // namespace

Result<void> check_request(const Request& request, const engine::EngineLimits& limits) {
  ASSAY_TRY(check_prompt(request, limits));
  if (request.max_tokens < 0) {
    return invalid("max_tokens", "negative number of tokens", std::to_string(request.max_tokens), "0 or more");
  }
  if (request.top_logprobs < 0 || request.top_logprobs > ops::kMaxTopLogprobs) {
    return invalid("top_logprobs", "number of alternatives out of range", std::to_string(request.top_logprobs),
                   fmt::format("0 to {}", ops::kMaxTopLogprobs));
  }
  if (!std::isfinite(request.temperature) || !std::isfinite(request.top_p) || !std::isfinite(request.min_p)) {
    return invalid("temperature, top_p, min_p", "sampling parameter is not finite",
                   fmt::format("{}, {}, {}", request.temperature, request.top_p, request.min_p), "finite numbers");
  }
  const int32_t unit_tokens = std::min<int32_t>(static_cast<int32_t>(request.prompt.size()), engine::kPrefillCut);
  if (request.prompt_logprobs && unit_tokens > limits.max_step_outputs) {
    return invalid("prompt_logprobs", "a step of this engine holds too few outputs to score a prompt",
                   fmt::format("{} outputs", unit_tokens), fmt::format("at most {} outputs", limits.max_step_outputs));
  }
  ASSAY_TRY(check_adjustments(request, limits));
  return check_pages(request, limits);
}

}  // namespace assay::scheduler
