#include "server/chat_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

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
    for (int32_t i = 0; i < std::min(token.top_count, list->alternatives); ++i) {
      top.push_back(token_entry(*list, token.top_ids[i], token.top_logprobs[i]));
    }
    content.push_back(std::move(entry));
  }
  Json json;
  json["content"] = std::move(content);
  return json;
}

std::string choice_chunk(const CompletionHead& head, Json delta, const ChoiceParts& parts, const ChoiceFinish* finish) {
  Json choice;
  choice["index"] = parts.index;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = logprobs_json(parts.logprobs);
  choice["finish_reason"] = finish ? Json(finish->reason) : Json(nullptr);
  if (finish) choice["stop_reason"] = stop_reason_json(*finish);
  if (parts.token_ids) choice["token_ids"] = *parts.token_ids;
  Json json = head_json(head, "chat.completion.chunk");
  json["choices"] = Json::array({std::move(choice)});
  if (parts.prompt_token_ids) json["prompt_token_ids"] = *parts.prompt_token_ids;
  return dump_json(json);
}

}  // namespace

std::string role_chunk(const CompletionHead& head, const ChoiceParts& parts) {
  Json delta;
  delta["role"] = "assistant";
  delta["content"] = "";
  return choice_chunk(head, std::move(delta), parts, nullptr);
}

std::string reasoning_chunk(const CompletionHead& head, std::string_view text, const ChoiceParts& parts) {
  Json delta;
  delta["reasoning_content"] = text;
  delta["reasoning"] = text;
  return choice_chunk(head, std::move(delta), parts, nullptr);
}

std::string content_chunk(const CompletionHead& head, std::string_view text, const ChoiceParts& parts) {
  Json delta;
  delta["content"] = text;
  return choice_chunk(head, std::move(delta), parts, nullptr);
}

std::string tool_call_chunk(const CompletionHead& head, int32_t call, std::string_view id, std::string_view name,
                            const ChoiceParts& parts) {
  Json entry;
  entry["index"] = call;
  entry["id"] = id;
  entry["type"] = "function";
  entry["function"] = {{"name", name}, {"arguments", ""}};
  Json delta;
  delta["tool_calls"] = Json::array({std::move(entry)});
  return choice_chunk(head, std::move(delta), parts, nullptr);
}

std::string arguments_chunk(const CompletionHead& head, int32_t call, std::string_view fragment,
                            const ChoiceParts& parts) {
  Json entry;
  entry["index"] = call;
  entry["function"]["arguments"] = fragment;
  Json delta;
  delta["tool_calls"] = Json::array({std::move(entry)});
  return choice_chunk(head, std::move(delta), parts, nullptr);
}

std::string finish_chunk(const CompletionHead& head, const ChoiceFinish& finish, const ChoiceParts& parts) {
  return choice_chunk(head, Json::object(), parts, &finish);
}

std::string usage_chunk(const CompletionHead& head, const Usage& usage) {
  Json json = head_json(head, "chat.completion.chunk");
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  return dump_json(json);
}

std::string completion_body(const CompletionHead& head, const std::vector<ChatChoice>& choices, const Usage& usage,
                            const LogprobList* prompt_logprobs) {
  Json list = Json::array();
  for (const ChatChoice& one : choices) {
    Json reply;
    reply["role"] = "assistant";
    reply["content"] = one.content.empty() && !one.tool_calls.empty() ? Json(nullptr) : Json(one.content);
    reply["refusal"] = nullptr;
    for (const char* name : {"reasoning_content", "reasoning"}) {
      reply[name] = one.reasoning.empty() ? Json(nullptr) : Json(one.reasoning);
    }
    Json& calls = reply["tool_calls"] = Json::array();
    for (const ToolCall& call : one.tool_calls) {
      Json entry;
      entry["id"] = call.id;
      entry["type"] = "function";
      entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
      calls.push_back(std::move(entry));
    }
    Json choice;
    choice["index"] = one.parts.index;
    choice["message"] = std::move(reply);
    choice["logprobs"] = logprobs_json(one.parts.logprobs);
    choice["finish_reason"] = one.finish.reason;
    choice["stop_reason"] = stop_reason_json(one.finish);
    if (one.parts.token_ids) choice["token_ids"] = *one.parts.token_ids;
    list.push_back(std::move(choice));
  }
  Json json = head_json(head, "chat.completion");
  json["choices"] = std::move(list);
  json["usage"] = usage_json(usage);
  if (prompt_logprobs) json["prompt_logprobs"] = prompt_logprobs_json(*prompt_logprobs);
  if (!choices.empty() && choices[0].parts.prompt_token_ids) {
    json["prompt_token_ids"] = *choices[0].parts.prompt_token_ids;
  }
  return dump_json(json);
}

}  // namespace assay::server
