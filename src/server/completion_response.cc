#include "server/completion_response.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

// Tokens are told apart by their text here, so those that are no text read "bytes:\xe2\x82".
std::string token_text(std::string_view bytes) {
  std::string text = text::repair_utf8(bytes);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return text;
}

// Characters that begin in these bytes.
int32_t characters(std::string_view bytes) {
  return static_cast<int32_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

Json alternatives_json(const LogprobList& list, const ops::SampleResult& token) {
  Json top = Json::object();
  for (int32_t i = 0; i < std::min(token.top_count, list.alternatives); ++i) {
    const std::string text = token_text(list.token_bytes(token.top_ids[i]));
    if (!top.contains(text)) top[text] = json_logprob(token.top_logprobs[i]);
  }
  const std::string own = token_text(list.token_bytes(token.token));
  if (!top.contains(own)) top[own] = json_logprob(token.logprob);
  return top;
}

Json logprobs_json(const TextLogprobs* logprobs) {
  if (!logprobs) return nullptr;
  const LogprobList& list = logprobs->list;
  Json offsets = Json::array(), tokens = Json::array(), values = Json::array(), top = Json::array();
  int32_t offset = logprobs->offset;
  const auto add = [&](int32_t id, Json value, Json alternatives) {
    const std::string_view bytes = list.token_bytes(id);
    offsets.push_back(offset);
    tokens.push_back(token_text(bytes));
    values.push_back(std::move(value));
    top.push_back(std::move(alternatives));
    if (tokens.size() <= logprobs->echoed || logprobs->is_shown(id)) offset += characters(bytes);
  };
  if (logprobs->first_token) add(*logprobs->first_token, nullptr, nullptr);
  for (const ops::SampleResult& token : list.tokens) {
    add(token.token, json_logprob(token.logprob), alternatives_json(list, token));
  }
  Json json;
  json["text_offset"] = std::move(offsets);
  json["tokens"] = std::move(tokens);
  json["token_logprobs"] = std::move(values);
  json["top_logprobs"] = std::move(top);
  return json;
}

Json choice_json(const TextChoice& choice) {
  Json json;
  json["index"] = choice.parts.index;
  json["text"] = choice.text;
  json["logprobs"] = logprobs_json(choice.logprobs);
  json["finish_reason"] = choice.finish ? Json(choice.finish->reason) : Json(nullptr);
  if (choice.finish) json["stop_reason"] = stop_reason_json(*choice.finish);
  if (choice.parts.token_ids) json["token_ids"] = *choice.parts.token_ids;
  if (choice.parts.prompt_token_ids) json["prompt_token_ids"] = *choice.parts.prompt_token_ids;
  if (choice.prompt_logprobs) json["prompt_logprobs"] = prompt_logprobs_json(*choice.prompt_logprobs);
  return json;
}

}  // namespace

int32_t text_length(const TextLogprobs& logprobs) {
  int32_t length = 0;
  size_t entries = 0;
  const auto add = [&](int32_t id) {
    if (++entries <= logprobs.echoed || logprobs.is_shown(id)) length += characters(logprobs.list.token_bytes(id));
  };
  if (logprobs.first_token) add(*logprobs.first_token);
  for (const ops::SampleResult& token : logprobs.list.tokens) add(token.token);
  return length;
}

std::string text_chunk(const CompletionHead& head, const TextChoice& choice) {
  Json json = head_json(head, "text_completion");
  json["choices"] = Json::array({choice_json(choice)});
  return dump_json(json);
}

std::string text_usage_chunk(const CompletionHead& head, const Usage& usage) {
  Json json = head_json(head, "text_completion");
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  return dump_json(json);
}

std::string text_body(const CompletionHead& head, const std::vector<TextChoice>& choices, const Usage& usage) {
  Json json = head_json(head, "text_completion");
  Json& list = json["choices"] = Json::array();
  for (const TextChoice& choice : choices) list.push_back(choice_json(choice));
  json["usage"] = usage_json(usage);
  return dump_json(json);
}

}  // namespace assay::server
