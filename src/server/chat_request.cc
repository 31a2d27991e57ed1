#include "server/chat_request.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/json_bounds.h"

namespace assay::server {

using Json = nlohmann::ordered_json;
using MaybeError = std::optional<ApiError>;

namespace {

constexpr std::array<std::string_view, 19> kKnownFields = {"messages",
                                                           "model",
                                                           "max_tokens",
                                                           "max_completion_tokens",
                                                           "temperature",
                                                           "top_p",
                                                           "top_k",
                                                           "min_p",
                                                           "seed",
                                                           "stop",
                                                           "logprobs",
                                                           "top_logprobs",
                                                           "stream",
                                                           "stream_options",
                                                           "tools",
                                                           "n",
                                                           "chat_template_kwargs",
                                                           "user",
                                                           "metadata"};

#define ASSAY_FIELD(expr)                      \
  do {                                         \
    if (auto refused = (expr)) return refused; \
  } while (0)

// The member, or null if it is absent or null.
const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

MaybeError wrong_type(const std::string& param, std::string_view wanted, const Json& got) {
  return invalid_field(param, fmt::format("{} must be {}, not {}", param, wanted, got.type_name()));
}

MaybeError read_bool(const Json& object, const char* name, bool& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_boolean()) return wrong_type(name, "a boolean", *value);
  out = value->get<bool>();
  return {};
}

MaybeError read_number(const Json& object, const char* name, double low, double high, std::optional<float>& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_number()) return wrong_type(name, "a number", *value);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    return invalid_field(name, fmt::format("{} must be from {} to {}, not {}", name, low, high, number));
  }
  out = static_cast<float>(number);
  return {};
}

MaybeError read_int(const Json& object, const char* name, int64_t low, int64_t high, std::optional<int32_t>& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_number_integer()) return wrong_type(name, "an integer", *value);
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > std::numeric_limits<int64_t>::max();
  const int64_t number = huge ? std::numeric_limits<int64_t>::max() : value->get<int64_t>();
  if (number < low) return invalid_field(name, fmt::format("{} must be >= {}, not {}", name, low, number));
  if (number > high) return invalid_field(name, fmt::format("{} must be <= {}, not {}", name, high, number));
  out = static_cast<int32_t>(number);
  return {};
}

MaybeError read_content(const Json& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return {};
  if (!content.is_array()) return wrong_type(where, "a string or a list of text parts", content);
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string param = fmt::format("{}[{}]", where, i);
    if (!part.is_object()) return wrong_type(param, "an object", part);
    const Json* type = member(part, "type");
    if (!type || !type->is_string()) return invalid_field(param + ".type", param + ".type must be a string");
    if (*type != "text") {
      return invalid_field(param + ".type",
                           fmt::format("{}.type must be text, not {}", param, type->get_ref<const std::string&>()));
    }
    const Json* text = member(part, "text");
    if (!text || !text->is_string()) return invalid_field(param + ".text", param + ".text must be a string");
  }
  return {};
}

MaybeError read_tool_calls(const Json& message, const std::string& where) {
  const Json* calls = member(message, "tool_calls");
  if (!calls) return {};
  if (!calls->is_array()) return wrong_type(where, "a list", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string param = fmt::format("{}[{}]", where, i);
    const Json& call = (*calls)[i];
    if (!call.is_object()) return wrong_type(param, "an object", call);
    const Json* function = member(call, "function");
    if (!function || !function->is_object()) {
      return invalid_field(param + ".function", param + ".function must be an object");
    }
    const Json* name = member(*function, "name");
    if (!name || !name->is_string()) {
      return invalid_field(param + ".function.name", param + ".function.name must be a string");
    }
  }
  return {};
}

MaybeError read_messages(const Json& body, Json& context) {
  const auto found = body.find("messages");
  if (found == body.end()) return invalid_field("messages", "messages is required");
  if (!found->is_array()) return wrong_type("messages", "a list", *found);
  if (found->empty()) return invalid_field("messages", "messages must hold at least one message");
  Json messages = *found;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (!message.is_object()) return wrong_type(where, "an object", message);
    const Json* role = member(message, "role");
    if (!role) return invalid_field(where + ".role", where + ".role is required");
    if (!role->is_string()) return wrong_type(where + ".role", "a string", *role);
    const bool is_assistant = *role == "assistant";
    const Json* content = member(message, "content");
    if (content) ASSAY_FIELD(read_content(*content, where + ".content"));
    if (!content && !is_assistant) return invalid_field(where + ".content", where + ".content is required");
    if (is_assistant) ASSAY_FIELD(read_tool_calls(message, where + ".tool_calls"));
    if (*role == "developer") message["role"] = "system";
  }
  context["messages"] = std::move(messages);
  return {};
}

MaybeError read_tools(const Json& body, Json& context) {
  const Json* tools = member(body, "tools");
  if (!tools) return {};
  if (!tools->is_array()) return wrong_type("tools", "a list", *tools);
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) return wrong_type(where, "an object", tool);
    const Json* type = member(tool, "type");
    if (!type || *type != "function") return invalid_field(where + ".type", where + ".type must be function");
    const Json* function = member(tool, "function");
    if (!function || !function->is_object()) {
      return invalid_field(where + ".function", where + ".function must be an object");
    }
    const Json* name = member(*function, "name");
    if (!name || !name->is_string() || name->get_ref<const std::string&>().empty()) {
      return invalid_field(where + ".function.name", where + ".function.name must be a string that is not empty");
    }
  }
  if (!tools->empty()) context["tools"] = *tools;
  return {};
}

MaybeError read_template_kwargs(const Json& body, Json& context) {
  const Json* kwargs = member(body, "chat_template_kwargs");
  if (!kwargs) return {};
  if (!kwargs->is_object()) return wrong_type("chat_template_kwargs", "an object", *kwargs);
  for (const auto& [name, value] : kwargs->items()) {
    const std::string param = "chat_template_kwargs." + name;
    if (name == "messages" || name == "tools") {
      return invalid_field(param, fmt::format("{} must be given as the field {}", param, name));
    }
    if ((name == "enable_thinking" || name == "add_generation_prompt") && !value.is_boolean()) {
      return wrong_type(param, "a boolean", value);
    }
    context[name] = value;
  }
  return {};
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

MaybeError read_sampling(const Json& body, ChatRequest& request) {
  ASSAY_FIELD(read_number(body, "temperature", 0, 2, request.temperature));
  ASSAY_FIELD(read_number(body, "top_p", 0, 1, request.top_p));
  ASSAY_FIELD(read_number(body, "min_p", 0, 1, request.min_p));
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  ASSAY_FIELD(read_int(body, "top_k", -1, kMaxInt, request.top_k));
  if (request.top_k == -1) request.top_k = 0;
  if (const Json* seed = member(body, "seed")) {
    if (!seed->is_number_integer()) return wrong_type("seed", "an integer", *seed);
    request.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  ASSAY_FIELD(read_int(body, "max_tokens", 1, kMaxInt, request.max_tokens));
  ASSAY_FIELD(read_int(body, "max_completion_tokens", 1, kMaxInt, request.max_tokens));
  std::optional<int32_t> choices;
  ASSAY_FIELD(read_int(body, "n", 1, kMaxInt, choices));
  if (choices && *choices != 1) return invalid_field("n", fmt::format("n must be 1, not {}", *choices));
  return read_stop(body, request.stop);
}

MaybeError read_output_options(const Json& body, ChatRequest& request) {
  ASSAY_FIELD(read_bool(body, "logprobs", request.logprobs));
  std::optional<int32_t> top;
  ASSAY_FIELD(read_int(body, "top_logprobs", 0, kMaxTopLogprobs, top));
  if (top.value_or(0) > 0 && !request.logprobs) {
    return invalid_field("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  request.top_logprobs = top.value_or(0);
  ASSAY_FIELD(read_bool(body, "stream", request.stream));
  if (const Json* options = member(body, "stream_options")) {
    if (!options->is_object()) return wrong_type("stream_options", "an object", *options);
    if (!request.stream) return invalid_field("stream_options", "stream_options needs stream to be true");
    const Json* include = member(*options, "include_usage");
    if (include && !include->is_boolean()) return wrong_type("stream_options.include_usage", "a boolean", *include);
    request.include_usage = include && include->get<bool>();
  }
  return {};
}

MaybeError parse_json(std::string_view text, Json& body) {
  ApiError error;
  error.code = "invalid_json";
  switch (check_json_bounds(text, kMaxJsonDepth, kMaxObjectMembers)) {
    case JsonBounds::kTooDeep:
      error.message = fmt::format("The body's JSON nests deeper than {} levels", kMaxJsonDepth);
      return error;
    case JsonBounds::kTooManyMembers:
      error.message = fmt::format("An object of the body has more than {} members", kMaxObjectMembers);
      return error;
    case JsonBounds::kOk:
      break;
  }
  try {
    body = Json::parse(text);
  } catch (const Json::exception& problem) {
    error.message = fmt::format("The body is not valid JSON: {}", problem.what());
    return error;
  }
  if (!body.is_object()) {
    error.message = fmt::format("The body must be a JSON object, not {}", body.type_name());
    return error;
  }
  return {};
}

}  // namespace

std::optional<ApiError> parse_chat_request(std::string_view text, ChatRequest& request) {
  Json body;
  ASSAY_FIELD(parse_json(text, body));
  if (const Json* model = member(body, "model")) {
    if (!model->is_string()) return wrong_type("model", "a string", *model);
    request.model = model->get<std::string>();
  }
  Json context = Json::object();
  ASSAY_FIELD(read_messages(body, context));
  ASSAY_FIELD(read_tools(body, context));
  context["add_generation_prompt"] = true;
  ASSAY_FIELD(read_template_kwargs(body, context));
  ASSAY_FIELD(read_sampling(body, request));
  ASSAY_FIELD(read_output_options(body, request));
  request.context = std::make_shared<const Json>(std::move(context));
  for (const auto& [name, value] : body.items()) {
    bool known = false;
    for (std::string_view field : kKnownFields) known = known || field == name;
    if (!known) request.ignored_fields.push_back(name);
  }
  return {};
}

}  // namespace assay::server
