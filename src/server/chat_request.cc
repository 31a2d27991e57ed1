#include "server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::array kRoles = std::to_array<std::string_view>({"system", "developer", "user", "assistant", "tool"});

MaybeError read_role(const Json& message, const std::string& where) {
  const Json* role = member(message, "role");
  if (!role) return invalid_field(where, where + " is required");
  if (!role->is_string()) return wrong_type(where, "a string", *role);
  const auto& name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), name) != kRoles.end()) return {};
  return invalid_field(where,
                       fmt::format("{} must be one of {}, not {}", where, fmt::join(kRoles, ", "), name.substr(0, 64)));
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
    ASSAY_FIELD(read_role(message, where + ".role"));
    const Json& role = message["role"];
    const bool is_assistant = role == "assistant";
    const Json* content = member(message, "content");
    if (content) ASSAY_FIELD(read_content(*content, where + ".content"));
    if (!content && !is_assistant) return invalid_field(where + ".content", where + ".content is required");
    if (is_assistant) ASSAY_FIELD(read_tool_calls(message, where + ".tool_calls"));
    if (role == "developer") message["role"] = "system";
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

// Whether `tools` has a function of this name.
bool has_tool(const Json& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(), [&](const Json& tool) { return tool["function"]["name"] == name; });
}

MaybeError read_tool_choice(const Json& body, const Json& context, ChatRequest& request) {
  const Json* choice = member(body, "tool_choice");
  const auto tools = context.find("tools");
  request.tool_choice = tools == context.end() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (!choice) return {};
  if (choice->is_string() && *choice == "none") {
    request.tool_choice = ToolChoice::kNone;
    return {};
  }
  if (choice->is_string() && *choice == "auto") return {};
  if (tools == context.end()) return invalid_field("tool_choice", "tool_choice needs tools");
  if (choice->is_string() && *choice == "required") {
    request.tool_choice = ToolChoice::kRequired;
    return {};
  }
  if (!choice->is_object()) {
    return invalid_field("tool_choice", "tool_choice must be none, auto, required or an object that names a function");
  }
  const Json* type = member(*choice, "type");
  const Json* function = member(*choice, "function");
  const Json* name = function && function->is_object() ? member(*function, "name") : nullptr;
  if (!type || *type != "function" || !name || !name->is_string()) {
    return invalid_field("tool_choice",
                         "tool_choice must be of the form {\"type\": \"function\", \"function\": {\"name\": NAME}}");
  }
  request.tool_choice = ToolChoice::kNamed;
  request.tool_name = name->get<std::string>();
  if (!has_tool(*tools, request.tool_name)) {
    return invalid_field("tool_choice", fmt::format("tool_choice names {}, which is not among the tools",
                                                    request.tool_name.substr(0, 128)));
  }
  return {};
}

MaybeError read_lengths_and_logprobs(const Json& body, ChatRequest& request) {
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  ASSAY_FIELD(read_int(body, "max_tokens", 1, kMaxInt, request.max_tokens));
  ASSAY_FIELD(read_int(body, "max_completion_tokens", 1, kMaxInt, request.max_tokens));
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return invalid_field("min_tokens", fmt::format("min_tokens must be at most max_tokens, {}", *request.max_tokens));
  }
  ASSAY_FIELD(read_bool(body, "logprobs", request.logprobs));
  std::optional<int32_t> top;
  ASSAY_FIELD(read_int(body, "top_logprobs", 0, kMaxTopLogprobs, top));
  if (top.value_or(0) > 0 && !request.logprobs) {
    return invalid_field("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  request.top_logprobs = top.value_or(0);
  return {};
}

}  // namespace

MaybeError read_chat_context(const Json& body, Json& context) {
  ASSAY_FIELD(read_messages(body, context));
  ASSAY_FIELD(read_tools(body, context));
  context["add_generation_prompt"] = true;
  ASSAY_FIELD(read_template_kwargs(body, context));
  if (const Json* prompt = member(body, "add_generation_prompt")) {
    if (!prompt->is_boolean()) return wrong_type("add_generation_prompt", "a boolean", *prompt);
    context["add_generation_prompt"] = *prompt;
  }
  return {};
}

MaybeError parse_chat_request(std::string_view text, ChatRequest& request) {
  Json body;
  ASSAY_FIELD(parse_body(text, body));
  Json context = Json::object();
  ASSAY_FIELD(read_chat_context(body, context));
  ASSAY_FIELD(read_generation_options(body, request));
  ASSAY_FIELD(read_lengths_and_logprobs(body, request));
  ASSAY_FIELD(read_tool_choice(body, context, request));
  ASSAY_FIELD(read_bool(body, "parallel_tool_calls", request.parallel_tool_calls));
  for (const char* name : {"functions", "function_call"}) {
    if (member(body, name)) return invalid_field(name, fmt::format("{} is not supported: use tools", name));
  }
  if (request.tool_choice == ToolChoice::kNone) {
    context.erase("tools");
  } else {
    request.tools = std::make_shared<const text::ToolSchemas>(context["tools"]);
  }
  request.context = std::make_shared<const Json>(std::move(context));
  note_ignored_fields(body,
                      {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
                       "parallel_tool_calls", "chat_template_kwargs", "add_generation_prompt"},
                      request);
  return {};
}

}  // namespace assay::server
