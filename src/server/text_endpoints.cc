#include "server/text_endpoints.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/generation_run.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

MaybeError read_body(std::string_view text, const ServerOptions& options, Json& body) {
  ASSAY_FIELD(parse_body(text, body));
  std::string name;
  ASSAY_FIELD(read_string(body, "model", name));
  return check_model_name(options, name);
}

MaybeError render(const Json& body, const Model& model, std::string& text) {
  Json context = Json::object();
  ASSAY_FIELD(read_chat_context(body, context));
  auto rendered = model.chat_template->render(context);
  if (!rendered.ok()) {
    return invalid_field("messages", "The chat template refused the messages: " + rendered.error().message());
  }
  text = std::move(rendered).value();
  return {};
}

}  // namespace

MaybeError tokenize(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply) {
  Json body;
  ASSAY_FIELD(read_body(text, options, body));
  std::string prompt;
  if (member(body, "messages")) {
    ASSAY_FIELD(render(body, model, prompt));
  } else if (member(body, "prompt")) {
    ASSAY_FIELD(read_string(body, "prompt", prompt));
  } else if (member(body, "content")) {
    ASSAY_FIELD(read_string(body, "content", prompt));
  } else {
    return invalid_field("prompt", "prompt or messages is required");
  }
  bool return_strings = false;
  ASSAY_FIELD(read_bool(body, "return_token_strs", return_strings));
  const std::vector<int32_t> ids = model.tokenizer->encode(prompt);
  Json json;
  json["count"] = ids.size();
  json["max_model_len"] = model.context_tokens;
  json["tokens"] = ids;
  Json strings = nullptr;
  if (return_strings) {
    strings = Json::array();
    for (const int32_t id : ids) strings.push_back(text::repair_utf8(model.tokenizer->token_bytes(id)));
  }
  json["token_strs"] = std::move(strings);
  reply = dump_json(json);
  return {};
}

MaybeError detokenize(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply) {
  Json body;
  ASSAY_FIELD(read_body(text, options, body));
  const Json* tokens = member(body, "tokens");
  if (!tokens) return invalid_field("tokens", "tokens is required");
  std::vector<int32_t> ids;
  ASSAY_FIELD(read_token_ids(*tokens, "tokens", kMaxPromptTokens, ids));
  text::Detokenizer detokenizer(*model.tokenizer, /*skip_special=*/false);
  std::string decoded;
  for (const int32_t id : ids) {
    if (id >= model.loop->limits().vocab_size) {
      return invalid_field("tokens", fmt::format("tokens holds the token id {}; the vocabulary ends at {}", id,
                                                 model.loop->limits().vocab_size - 1));
    }
    decoded += detokenizer.push(id);
  }
  decoded += detokenizer.finish();
  Json json;
  json["prompt"] = decoded;
  json["content"] = decoded;
  reply = dump_json(json);
  return {};
}

MaybeError apply_template(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply) {
  Json body;
  ASSAY_FIELD(read_body(text, options, body));
  std::string prompt;
  ASSAY_FIELD(render(body, model, prompt));
  Json json;
  json["prompt"] = prompt;
  reply = dump_json(json);
  return {};
}

}  // namespace assay::server
