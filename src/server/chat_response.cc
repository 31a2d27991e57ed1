#include "server/chat_response.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr double kLogprobFloor = -9999.0;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double json_logprob(float logprob) {
  return std::isfinite(logprob) && logprob > kLogprobFloor ? static_cast<double>(logprob) : kLogprobFloor;
}

Json token_entry(const LogprobList& list, int32_t id, float logprob) {
  const std::string_view bytes = list.token_bytes(id);
  Json entry;
  entry["token"] = text::repair_utf8(bytes);
  entry["logprob"] = json_logprob(logprob);
  Json& numbers = entry["bytes"] = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<uint8_t>(byte));
  return entry;
}

Json logprobs_json(const LogprobList* list) {
  if (!list) return nullptr;
  Json content = Json::array();
  for (const ops::SampleResult& token : list->tokens) {
    Json entry = token_entry(*list, token.token, token.logprob);
    Json& top = entry["top_logprobs"] = Json::array();
    for (int32_t i = 0; i < token.top_count; ++i) {
      top.push_back(token_entry(*list, token.top_ids[i], token.top_logprobs[i]));
    }
    content.push_back(std::move(entry));
  }
  Json json;
  json["content"] = std::move(content);
  return json;
}

Json head_json(const CompletionHead& head, const char* object) {
  Json json;
  json["id"] = head.id;
  json["object"] = object;
  json["created"] = head.created;
  json["model"] = head.model;
  json["system_fingerprint"] = head.fingerprint;
  return json;
}

std::string choice_chunk(const CompletionHead& head, Json delta, const LogprobList* logprobs, const Finish* finish) {
  Json choice;
  choice["index"] = 0;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = logprobs_json(logprobs);
  choice["finish_reason"] = finish ? Json(finish->reason) : Json(nullptr);
  if (finish) choice["stop_reason"] = finish->stop_string ? Json(*finish->stop_string) : Json(nullptr);
  Json json = head_json(head, "chat.completion.chunk");
  json["choices"] = Json::array({std::move(choice)});
  return dump(json);
}

Json usage_json(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = {{"cached_tokens", 0}};
  json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return json;
}

}  // namespace

std::string role_chunk(const CompletionHead& head) {
  Json delta;
  delta["role"] = "assistant";
  delta["content"] = "";
  return choice_chunk(head, std::move(delta), nullptr, nullptr);
}

std::string reasoning_chunk(const CompletionHead& head, std::string_view text, const LogprobList* logprobs) {
  Json delta;
  delta["reasoning_content"] = text;
  delta["reasoning"] = text;
  return choice_chunk(head, std::move(delta), logprobs, nullptr);
}

std::string content_chunk(const CompletionHead& head, std::string_view text, const LogprobList* logprobs) {
  Json delta;
  delta["content"] = text;
  return choice_chunk(head, std::move(delta), logprobs, nullptr);
}

std::string finish_chunk(const CompletionHead& head, const Finish& finish, const LogprobList* logprobs) {
  return choice_chunk(head, Json::object(), logprobs, &finish);
}

std::string usage_chunk(const CompletionHead& head, const Usage& usage) {
  Json json = head_json(head, "chat.completion.chunk");
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string completion_body(const CompletionHead& head, const text::TextDelta& message, const Finish& finish,
                            const Usage& usage, const LogprobList* logprobs) {
  Json reply;
  reply["role"] = "assistant";
  reply["content"] = message.content;
  reply["refusal"] = nullptr;
  for (const char* name : {"reasoning_content", "reasoning"}) {
    reply[name] = message.reasoning.empty() ? Json(nullptr) : Json(message.reasoning);
  }
  reply["tool_calls"] = Json::array();
  Json choice;
  choice["index"] = 0;
  choice["message"] = std::move(reply);
  choice["logprobs"] = logprobs_json(logprobs);
  choice["finish_reason"] = finish.reason;
  choice["stop_reason"] = finish.stop_string ? Json(*finish.stop_string) : Json(nullptr);
  Json json = head_json(head, "chat.completion");
  json["choices"] = Json::array({std::move(choice)});
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string sse_event(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

}  // namespace assay::server
