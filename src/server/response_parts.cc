#include "server/response_parts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr double kLogprobFloor = -9999.0;

}  // namespace

std::string dump_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double json_logprob(float logprob) {
  return std::isfinite(logprob) && logprob > kLogprobFloor ? static_cast<double>(logprob) : kLogprobFloor;
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

Json usage_json(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = {{"cached_tokens", 0}};
  json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return json;
}

Json stop_reason_json(const ChoiceFinish& finish) {
  if (finish.stop_string) return *finish.stop_string;
  return finish.stop_token ? Json(*finish.stop_token) : Json(nullptr);
}

Json prompt_logprobs_json(const LogprobList& list) {
  Json entries = Json::array({nullptr});
  for (const ops::SampleResult& token : list.tokens) {
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob, const Json& rank) {
      Json& one = entry[std::to_string(id)];
      one["logprob"] = json_logprob(logprob);
      one["rank"] = rank;
      one["decoded_token"] = text::repair_utf8(list.token_bytes(id));
    };
    const int32_t count = std::min(token.top_count, list.alternatives);
    Json rank = nullptr;
    for (int32_t i = 0; i < token.top_count; ++i) {
      if (token.top_ids[i] == token.token) rank = i + 1;
    }
    add(token.token, token.logprob, rank);
    for (int32_t i = 0; i < count; ++i) add(token.top_ids[i], token.top_logprobs[i], i + 1);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string sse_event(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

}  // namespace assay::server
