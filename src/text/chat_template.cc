#include "text/chat_template.h"

#include <deque>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace assay::text {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Dict;
using jinja::Runtime;
using jinja::Type;
using jinja::Value;

// Copies the message without its null members, with its reasoning under the name that templates read. The standard
// name wins over the older ones, as in Hugging Face's _alias_reasoning_fields.
Value clean_message(Runtime& runtime, const Value& message) {
  const auto named = [](std::string_view name) { return Value::of(name); };
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* value = message.dict->find(runtime, named(name));
    if (reasoning == nullptr && value != nullptr && !value->is(Type::kNone)) reasoning = value;
  }
  Dict* clean = runtime.dict();
  if (reasoning != nullptr) clean->set(runtime, named("thinking"), *reasoning);
  for (const auto& [key, value] : message.dict->entries) {
    if (!value.is(Type::kNone)) clean->set(runtime, key, value);
  }
  if (reasoning != nullptr) clean->set(runtime, named("reasoning_content"), *reasoning);
  return Value::of(clean);
}

// tool_calls[].function.arguments (or tool_calls[].arguments): JSON text of an object becomes the object.
void parse_arguments(Runtime& runtime, const Value& message, std::deque<Json>& parsed) {
  const Value* calls = message.dict->find(runtime, Value::of(std::string_view("tool_calls")));
  if (calls == nullptr || !calls->is(Type::kList)) return;
  for (const Value& call : calls->list->items) {
    if (!call.is(Type::kDict)) continue;
    const Value* inner = call.dict->find(runtime, Value::of(std::string_view("function")));
    Dict* function = inner != nullptr && inner->is(Type::kDict) ? inner->dict : call.dict;
    const Value name = Value::of(std::string_view("arguments"));
    const Value* arguments = function->find(runtime, name);
    if (arguments == nullptr || !arguments->is(Type::kString)) continue;
    Json json = Json::parse(arguments->text, nullptr, false);
    if (!json.is_object()) continue;
    parsed.push_back(std::move(json));
    function->set(runtime, name, jinja::from_json(runtime, parsed.back()));
  }
}

Error invalid(const jinja::Fault& fault) {
  const std::string where = fault.line > 0 ? fmt::format("chat template, line {}", fault.line) : "chat template";
  const std::string what = fault.message.empty() ? "the template refuses, and does not say why" : fault.message;
  return {ErrorKind::kInvalidArgument, what, where, "", "", ""};
}

}  // namespace

struct ChatTemplate::State {
  std::unique_ptr<jinja::Template> tree;
  Json special_tokens = Json::object();  // bos_token and the like, as variables
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(const std::string& source) {
  auto state = std::make_unique<State>();
  try {
    state->tree = jinja::parse(source);
  } catch (const jinja::Fault& fault) {
    return Error{ErrorKind::kCheckpoint, fault.message, fmt::format("chat template, line {}", fault.line), "", "", ""};
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(state)));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::load(const std::string& model_directory) {
  const std::string config_path = model_directory + "/tokenizer_config.json";
  Json config = Json::object();
  if (std::filesystem::exists(config_path)) {
    ASSAY_ASSIGN(const std::string text, read_file(config_path));
    config = Json::parse(text, nullptr, false);
    if (!config.is_object()) return Error{ErrorKind::kCheckpoint, "not a JSON object", config_path, "", "", ""};
  }
  std::string source;
  std::string path = model_directory + "/chat_template.jinja";
  if (std::filesystem::exists(path)) {
    ASSAY_ASSIGN(source, read_file(path));
  } else if (config.contains("chat_template") && config["chat_template"].is_string()) {
    source = config["chat_template"].get<std::string>();
    path = config_path;
  } else {
    return Error{ErrorKind::kCheckpoint,
                 "no chat template",
                 model_directory,
                 "neither file has one",
                 "chat_template.jinja, or chat_template in tokenizer_config.json",
                 ""};
  }
  auto parsed = parse(source);
  if (!parsed.ok()) {
    Error error = std::move(parsed).error();
    error.where = path + ": " + error.where;
    return error;
  }
  std::unique_ptr<ChatTemplate> made = std::move(parsed).value();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    if (!config.contains(name)) continue;
    Json token = config[name];
    if (token.is_object() && token.contains("content")) token = Json(token["content"]);
    if (token.is_string()) made->state_->special_tokens[name] = std::move(token);
  }
  return made;
}

Result<std::string> ChatTemplate::render(const Json& context) const {
  if (!context.is_object()) {
    return Error{ErrorKind::kInvalidArgument, "the template's context must be an object", "chat template", "", "", ""};
  }
  try {
    Runtime runtime;
    std::deque<Json> parsed;
    jinja::Scope* variables = runtime.scope(nullptr);
    // What apply_chat_template always passes.
    for (const char* name : {"tools", "documents"}) variables->set(name, Value::none());
    variables->set("add_generation_prompt", Value::of(false));
    for (const auto& [name, token] : state_->special_tokens.items()) {
      variables->set(state_->special_tokens.find(name).key(), jinja::from_json(runtime, token));
    }
    for (auto it = context.begin(); it != context.end(); ++it) {
      Value value = jinja::from_json(runtime, it.value());
      if (it.key() == "messages" && value.is(Type::kList)) {
        for (Value& message : value.list->items) {
          if (!message.is(Type::kDict)) continue;
          message = clean_message(runtime, message);
          parse_arguments(runtime, message, parsed);
        }
      }
      variables->set(it.key(), value);
    }
    return jinja::Interpreter(runtime, variables).run(*state_->tree);
  } catch (const jinja::Fault& fault) {
    return invalid(fault);
  }
}

}  // namespace assay::text
