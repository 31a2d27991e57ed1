#include "server/generation_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

constexpr std::array kKnownFields = std::to_array<std::string_view>({"model",
                                                                     "max_tokens",
                                                                     "temperature",
                                                                     "top_p",
                                                                     "top_k",
                                                                     "min_p",
                                                                     "seed",
                                                                     "presence_penalty",
                                                                     "frequency_penalty",
                                                                     "repetition_penalty",
                                                                     "logit_bias",
                                                                     "stop",
                                                                     "stop_token_ids",
                                                                     "include_stop_str_in_output",
                                                                     "min_tokens",
                                                                     "ignore_eos",
                                                                     "skip_special_tokens",
                                                                     "n",
                                                                     "prompt_logprobs",
                                                                     "return_token_ids",
                                                                     "stream",
                                                                     "stream_options",
                                                                     "response_format",
                                                                     "user",
                                                                     "metadata",
                                                                     "logprobs"});

// Ways to constrain the answer's form, by the names that clients of other servers use.
constexpr std::array kGrammarFields =
    std::to_array<const char*>({"grammar", "regex", "ebnf", "json_schema", "structural_tag", "structured_outputs",
                                "guided_json", "guided_regex", "guided_choice", "guided_grammar"});

ApiError not_supported(const std::string& param, std::string_view detail) {
  return invalid_field(param, fmt::format("{} is not supported yet{}", param, detail));
}

MaybeError refuse_constraints(const Json& body) {
  for (const char* name : kGrammarFields) {
    if (member(body, name)) return not_supported(name, "");
  }
  const Json* format = member(body, "response_format");
  if (!format) return {};
  if (!format->is_object()) return wrong_type("response_format", "an object", *format);
  const Json* type = member(*format, "type");
  if (!type || !type->is_string()) {
    return invalid_field("response_format.type", "response_format.type must be a string");
  }
  if (*type == "text") return {};
  return not_supported("response_format", fmt::format(" with the type {}: only text is",
                                                      type->get_ref<const std::string&>().substr(0, 64)));
}

MaybeError read_stop(const Json& body, std::vector<std::string>& stop) {
  const Json* value = member(body, "stop");
  if (!value) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxStopStrings) {
    return invalid_field("stop", fmt::format("stop may hold at most {} strings, not {}", kMaxStopStrings, list.size()));
  }
  for (const Json& item : list) {
    if (!item.is_string()) return wrong_type("stop", "a string or a list of strings", item);
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return invalid_field("stop", "stop must not hold an empty string");
    if (text.size() > kMaxStopBytes) {
      return invalid_field("stop",
                           fmt::format("a stop string may have at most {} bytes, not {}", kMaxStopBytes, text.size()));
    }
    stop.push_back(text);
  }
  return {};
}

MaybeError read_logit_bias(const Json& body, GenerationOptions& options) {
  const Json* value = member(body, "logit_bias");
  if (!value) return {};
  if (!value->is_object()) return wrong_type("logit_bias", "an object", *value);
  if (value->size() > kMaxBiases) {
    return invalid_field("logit_bias", fmt::format("logit_bias may hold at most {} tokens", kMaxBiases));
  }
  for (const auto& [key, bias] : value->items()) {
    const std::string where = fmt::format("logit_bias.{}", key);
    int32_t token = -1;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (problem != std::errc() || end != key.data() + key.size() || token < 0) {
      return invalid_field(where, fmt::format("logit_bias: {} is no token id", key));
    }
    if (!bias.is_number()) return wrong_type(where, "a number", bias);
    const double number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) {
      return invalid_field(where, fmt::format("{} must be from -100 to 100, not {}", where, number));
    }
    options.logit_bias.emplace_back(token, static_cast<float>(number));
  }
  return {};
}

MaybeError read_sampling(const Json& body, GenerationOptions& options) {
  ASSAY_FIELD(read_number(body, "temperature", 0, 2, options.temperature));
  ASSAY_FIELD(read_number(body, "top_p", 0, 1, options.top_p));
  ASSAY_FIELD(read_number(body, "min_p", 0, 1, options.min_p));
  ASSAY_FIELD(read_int(body, "top_k", -1, kMaxInt, options.top_k));
  if (options.top_k == -1) options.top_k = 0;
  if (const Json* seed = member(body, "seed")) {
    if (!seed->is_number_integer()) return wrong_type("seed", "an integer", *seed);
    options.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  ASSAY_FIELD(read_number(body, "presence_penalty", -2, 2, options.presence_penalty));
  ASSAY_FIELD(read_number(body, "frequency_penalty", -2, 2, options.frequency_penalty));
  ASSAY_FIELD(read_number(body, "repetition_penalty", 0.01, 100, options.repetition_penalty));
  return read_logit_bias(body, options);
}

MaybeError read_ends(const Json& body, GenerationOptions& options) {
  ASSAY_FIELD(read_stop(body, options.stop));
  if (const Json* tokens = member(body, "stop_token_ids")) {
    ASSAY_FIELD(read_token_ids(*tokens, "stop_token_ids", kMaxStopTokens, options.stop_token_ids));
  }
  ASSAY_FIELD(read_bool(body, "include_stop_str_in_output", options.include_stop_str_in_output));
  ASSAY_FIELD(read_bool(body, "ignore_eos", options.ignore_eos));
  ASSAY_FIELD(read_bool(body, "skip_special_tokens", options.skip_special_tokens));
  std::optional<int32_t> min_tokens;
  ASSAY_FIELD(read_int(body, "min_tokens", 0, kMaxInt, min_tokens));
  options.min_tokens = min_tokens.value_or(0);
  return {};
}

MaybeError read_outputs(const Json& body, GenerationOptions& options) {
  std::optional<int32_t> choices;
  ASSAY_FIELD(read_int(body, "n", 1, kMaxChoices, choices));
  options.n = choices.value_or(1);
  ASSAY_FIELD(read_bool(body, "return_token_ids", options.return_token_ids));
  ASSAY_FIELD(read_bool(body, "stream", options.stream));
  if (const Json* settings = member(body, "stream_options")) {
    if (!settings->is_object()) return wrong_type("stream_options", "an object", *settings);
    if (!options.stream) return invalid_field("stream_options", "stream_options needs stream to be true");
    const Json* include = member(*settings, "include_usage");
    if (include && !include->is_boolean()) return wrong_type("stream_options.include_usage", "a boolean", *include);
    options.include_usage = include && include->get<bool>();
  }
  ASSAY_FIELD(read_int(body, "prompt_logprobs", 0, kMaxTopLogprobs, options.prompt_logprobs));
  if (options.prompt_logprobs && options.stream) {
    return invalid_field("prompt_logprobs", "prompt_logprobs needs stream to be false");
  }
  return {};
}

}  // namespace

MaybeError read_generation_options(const Json& body, GenerationOptions& options) {
  ASSAY_FIELD(read_string(body, "model", options.model));
  ASSAY_FIELD(refuse_constraints(body));
  ASSAY_FIELD(read_sampling(body, options));
  ASSAY_FIELD(read_ends(body, options));
  return read_outputs(body, options);
}

void note_ignored_fields(const Json& body, const std::vector<std::string_view>& known, GenerationOptions& options) {
  for (const auto& [name, value] : body.items()) {
    const std::string_view field = name;
    const bool shared = std::find(kKnownFields.begin(), kKnownFields.end(), field) != kKnownFields.end();
    if (!shared && std::find(known.begin(), known.end(), field) == known.end()) options.ignored_fields.push_back(name);
  }
}

}  // namespace assay::server
