#include "text/tool_call_parser.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace assay::text {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kEndCall = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kEndFunction = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kEndParameter = "</parameter>";
constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";
constexpr size_t kMaxNameBytes = 512;
constexpr int kMaxSchemaDepth = 8;

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
}

bool is_partial(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

// The tag `open` NAME '>' at the start of `text`.
struct NamedTag {
  enum { kAbsent, kUnfinished, kWhole } state = kAbsent;
  std::string_view name;
  size_t bytes = 0;
};

NamedTag read_named_tag(std::string_view text, std::string_view open, bool final) {
  if (is_partial(text, open) && !final) return {NamedTag::kUnfinished, {}, 0};
  if (!text.starts_with(open)) return {};
  const size_t end = text.find_first_of(">\n<", open.size());
  if (end == std::string_view::npos) {
    if (final || text.size() > open.size() + kMaxNameBytes) return {};
    return {NamedTag::kUnfinished, {}, 0};
  }
  const std::string_view name = trim(text.substr(open.size(), end - open.size()));
  if (text[end] != '>' || name.empty() || end > open.size() + kMaxNameBytes) return {};
  return {NamedTag::kWhole, name, end + 1};
}

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Without the quotes.
std::string escaped(std::string_view text) {
  const std::string quoted = json_string(text);
  return quoted.substr(1, quoted.size() - 2);
}

uint32_t kind_named(const Json& name) {
  if (!name.is_string()) return 0;
  const auto& text = name.get_ref<const std::string&>();
  if (text == "string") return ToolSchemas::kString;
  if (text == "integer") return ToolSchemas::kInteger;
  if (text == "number") return ToolSchemas::kNumber;
  if (text == "boolean") return ToolSchemas::kBoolean;
  if (text == "object") return ToolSchemas::kObject;
  if (text == "array") return ToolSchemas::kArray;
  if (text == "null") return ToolSchemas::kNull;
  return 0;
}

uint32_t kind_of_value(const Json& value) {
  if (value.is_string()) return ToolSchemas::kString;
  if (value.is_boolean()) return ToolSchemas::kBoolean;
  if (value.is_number_integer()) return ToolSchemas::kInteger;
  if (value.is_number()) return ToolSchemas::kNumber;
  if (value.is_object()) return ToolSchemas::kObject;
  return value.is_array() ? ToolSchemas::kArray : ToolSchemas::kNull;
}

// The kinds a schema allows; 0: it does not say.
uint32_t kinds_of(const Json& schema, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return 0;
  uint32_t kinds = 0;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_array()) {
      for (const Json& one : *type) kinds |= kind_named(one);
    } else {
      kinds |= kind_named(*type);
    }
  }
  if (const auto nullable = schema.find("nullable"); kinds != 0 && nullable != schema.end() && *nullable == true) {
    kinds |= ToolSchemas::kNull;
  }
  if (kinds != 0) return kinds;
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const auto list = schema.find(name);
    if (list == schema.end() || !list->is_array()) continue;
    for (const Json& one : *list) kinds |= kinds_of(one, depth + 1);
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) kinds |= kind_of_value(value);
  }
  if (const auto value = schema.find("const"); value != schema.end()) kinds |= kind_of_value(*value);
  if (schema.contains("$ref")) kinds |= ToolSchemas::kObject | ToolSchemas::kArray | ToolSchemas::kString;
  if (kinds == 0 && schema.contains("properties")) kinds = ToolSchemas::kObject;
  if (kinds == 0 && schema.contains("items")) kinds = ToolSchemas::kArray;
  return kinds;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

// The value as JSON text.
std::string convert(const std::string& value, uint32_t kinds) {
  std::string text(trim(value));
  if ((kinds & ToolSchemas::kNull) != 0 && equals_ignoring_case(text, "null")) return "null";
  if ((kinds & ToolSchemas::kString) == 0 && text == "null") return "null";
  if ((kinds & ToolSchemas::kBoolean) != 0) {
    if (equals_ignoring_case(text, "true")) return "true";
    if (equals_ignoring_case(text, "false")) return "false";
  }
  constexpr uint32_t kParsed =
      ToolSchemas::kInteger | ToolSchemas::kNumber | ToolSchemas::kObject | ToolSchemas::kArray;
  if ((kinds & kParsed) == 0) return json_string(value);
  // Kept as written, so that no digit is lost.
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_number()) {
    const double number = json.get<double>();
    if ((kinds & ToolSchemas::kNumber) != 0 && std::isfinite(number)) return text;
    if ((kinds & ToolSchemas::kInteger) != 0 && (json.is_number_integer() || number == std::floor(number))) return text;
  }
  if (json.is_object() && (kinds & ToolSchemas::kObject) != 0) return text;
  if (json.is_array() && (kinds & ToolSchemas::kArray) != 0) return text;
  return json_string(value);
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    auto& parameters = kinds_[name->get<std::string>()];
    const auto schema = function->find("parameters");
    if (schema == function->end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) {
      const uint32_t kinds = kinds_of(property, 0);
      parameters[key] = kinds == 0 ? uint32_t{kString} : kinds;
    }
  }
}

uint32_t ToolSchemas::kinds(std::string_view tool, std::string_view parameter) const {
  const auto found = kinds_.find(tool);
  if (found == kinds_.end()) return kString;
  const auto kinds = found->second.find(parameter);
  return kinds == found->second.end() ? uint32_t{kString} : kinds->second;
}

ToolDelta ToolCallParser::push(std::string_view text) {
  pending_ += text;
  ToolDelta delta;
  while (!pending_.empty() && step(false, delta)) {
  }
  return delta;
}

ToolDelta ToolCallParser::finish() {
  ToolDelta delta;
  while (step(true, delta)) {
  }
  if (calls_ == 0) delta.content += space_;
  space_.clear();
  return delta;
}

// Each step consumes from pending_ and says whether another may follow; `final`: no more text will come.
bool ToolCallParser::step(bool final, ToolDelta& delta) {
  switch (state_) {
    case State::kContent:
      return step_content(final, delta);
    case State::kOpen:
      return step_open(final, delta);
    case State::kBody:
      return step_body(final, delta);
    case State::kValue:
      return step_value(final, delta);
    case State::kAfter:
      return step_after(final, delta);
  }
  return false;
}

bool ToolCallParser::step_content(bool final, ToolDelta& delta) {
  const std::string_view text = pending_;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    const bool line_start = at == 0 ? at_line_start_ : text[at - 1] == '\n';
    const NamedTag function = line_start ? read_named_tag(rest, kFunction, final) : NamedTag{};
    const bool opens = rest.starts_with(kCall);
    if (opens || (function.state == NamedTag::kWhole && schemas_->has(function.name))) {
      emit_content(text.substr(0, at), delta);
      opening_ = opens ? kCall : std::string_view();
      pending_.erase(0, at + opening_.size());
      state_ = State::kOpen;
      return true;
    }
    if (!final && (is_partial(rest, kCall) || function.state == NamedTag::kUnfinished)) {
      emit_content(text.substr(0, at), delta);
      pending_.erase(0, at);
      return false;
    }
  }
  emit_content(text, delta);
  pending_.clear();
  return false;
}

bool ToolCallParser::step_open(bool final, ToolDelta& delta) {
  const size_t first = std::min(pending_.find_first_not_of(kWhiteSpace), pending_.size());
  const std::string_view rest = std::string_view(pending_).substr(first);
  if (rest.empty() && !final) return false;
  const NamedTag function = read_named_tag(rest, kFunction, final);
  if (function.state == NamedTag::kUnfinished) return false;
  if (function.state == NamedTag::kWhole) {
    begin_call(function.name, delta);
    pending_.erase(0, first + function.bytes);
    return true;
  }
  // No call. What was not a known function at its '<' is none the second time either.
  std::string text = std::move(opening_);
  opening_.clear();
  if (text.empty() && !pending_.empty()) {
    text = pending_.substr(0, first + 1);
    pending_.erase(0, first + 1);
  }
  emit_content(text, delta);
  state_ = State::kContent;
  return true;
}

bool ToolCallParser::step_body(bool final, ToolDelta& delta) {
  if (!in_stray_text_) pending_.erase(0, std::min(pending_.find_first_not_of(kWhiteSpace), pending_.size()));
  const std::string_view text = pending_;
  if (text.empty()) {
    if (final) end_call(State::kContent, delta);
    return false;
  }
  const NamedTag parameter = read_named_tag(text, kParameter, final);
  if (parameter.state == NamedTag::kWhole) {
    begin_value(parameter.name, delta);
    pending_.erase(0, parameter.bytes);
    return true;
  }
  const bool ends_function = text.starts_with(kEndFunction);
  if (ends_function || text.starts_with(kEndCall)) {
    end_call(ends_function ? State::kAfter : State::kContent, delta);
    pending_.erase(0, ends_function ? kEndFunction.size() : kEndCall.size());
    return true;
  }
  if (text.starts_with(kCall) || read_named_tag(text, kFunction, final).state == NamedTag::kWhole) {
    opening_.clear();
    end_call(text.starts_with(kCall) ? State::kContent : State::kOpen, delta);
    return true;
  }
  const bool partial = parameter.state == NamedTag::kUnfinished || is_partial(text, kEndFunction) ||
                       is_partial(text, kEndCall) || is_partial(text, kCall) ||
                       read_named_tag(text, kFunction, final).state == NamedTag::kUnfinished;
  if (partial && !final) return false;
  const size_t next = std::min(text.find('<', 1), text.size());
  emit_content(text.substr(0, next), delta);
  pending_.erase(0, next);
  in_stray_text_ = true;
  return true;
}

// Where the value in pending_ ends; npos: not in what is there, of which the last `held` bytes may belong to its end.
size_t ToolCallParser::value_end(bool final, size_t& held) const {
  const std::string_view text = pending_;
  held = 0;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    const bool line_start = at == 0 ? value_empty_ : text[at - 1] == '\n';
    bool partial = is_partial(rest, kEndParameter);
    if (rest.starts_with(kEndParameter)) return at;
    for (const std::string_view tag : {kParameter, kEndFunction, kEndCall}) {
      if (!line_start) break;
      if (rest.starts_with(tag)) return at;
      partial = partial || is_partial(rest, tag);
    }
    if (partial && !final) {
      held = text.size() - at;
      break;
    }
  }
  return std::string_view::npos;
}

bool ToolCallParser::step_value(bool final, ToolDelta& delta) {
  if (!value_begun_ && !pending_.empty()) {
    value_begun_ = true;
    if (pending_[0] == '\n') pending_.erase(0, 1);
  }
  size_t held = 0;
  const size_t end = value_end(final, held);
  const bool ended = end != std::string::npos;
  size_t shown = ended ? end : pending_.size() - held;
  const size_t consumed = shown;
  const bool line_feed = shown > 0 && pending_[shown - 1] == '\n';
  if (line_feed) --shown;  // not of the value if it is the last
  add_value(std::string_view(pending_).substr(0, shown), delta);
  if (!ended && !final) {
    pending_.erase(0, shown);
    return false;
  }
  pending_.erase(0, consumed);
  if (pending_.starts_with(kEndParameter)) pending_.erase(0, kEndParameter.size());
  end_value(delta);
  return true;
}

bool ToolCallParser::step_after(bool final, ToolDelta& delta) {
  const size_t first = std::min(pending_.find_first_not_of(kWhiteSpace), pending_.size());
  const std::string_view rest = std::string_view(pending_).substr(first);
  if (!final && (is_partial(rest, kEndCall) || is_partial(rest, kFunction))) return false;
  if (rest.starts_with(kFunction)) {
    opening_.clear();
    pending_.erase(0, first);
    state_ = State::kOpen;
    return true;
  }
  if (rest.starts_with(kEndCall)) pending_.erase(0, first + kEndCall.size());
  state_ = State::kContent;
  return step_content(final, delta);
}

void ToolCallParser::emit_content(std::string_view text, ToolDelta& delta) {
  if (text.empty()) return;
  at_line_start_ = text.back() == '\n';
  if (fresh_) {
    const size_t first = std::min(text.find_first_not_of(kWhiteSpace), text.size());
    space_ += text.substr(0, first);
    text.remove_prefix(first);
    if (text.empty()) return;
    fresh_ = false;
    delta.content += std::exchange(space_, {});
  }
  delta.content += text;
}

void ToolCallParser::emit_arguments(std::string_view text, ToolDelta& delta) {
  const int32_t index = calls_ - 1;
  if (delta.calls.empty() || delta.calls.back().index != index) delta.calls.push_back({index, false, "", ""});
  delta.calls.back().arguments += text;
}

void ToolCallParser::begin_call(std::string_view name, ToolDelta& delta) {
  space_.clear();
  name_ = name;
  has_argument_ = false;
  in_stray_text_ = false;
  delta.calls.push_back({calls_++, true, name_, "{"});
  state_ = State::kBody;
}

void ToolCallParser::begin_value(std::string_view key, ToolDelta& delta) {
  key_ = key;
  kinds_ = schemas_->kinds(name_, key_);
  value_begun_ = false;
  value_empty_ = true;
  value_.clear();
  emit_arguments((has_argument_ ? ", " : "") + json_string(key_) + ": ", delta);
  if (kinds_ == ToolSchemas::kString) emit_arguments("\"", delta);
  has_argument_ = true;
  in_stray_text_ = false;
  state_ = State::kValue;
}

void ToolCallParser::add_value(std::string_view text, ToolDelta& delta) {
  if (text.empty()) return;
  value_empty_ = false;
  if (kinds_ == ToolSchemas::kString) {
    emit_arguments(escaped(text), delta);
  } else {
    value_ += text;
  }
}

void ToolCallParser::end_value(ToolDelta& delta) {
  emit_arguments(kinds_ == ToolSchemas::kString ? "\"" : convert(value_, kinds_), delta);
  state_ = State::kBody;
}

void ToolCallParser::end_call(State next, ToolDelta& delta) {
  emit_arguments("}", delta);
  ++complete_;
  fresh_ = true;
  at_line_start_ = true;
  state_ = next;
}

}  // namespace assay::text
