// Methods of strings, dictionaries and lists.

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"
#include "text/utf8.h"

namespace assay::text::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "split",   "rsplit",  "splitlines", "strip",   "lstrip",  "rstrip",       "startswith",  "endswith", "replace",
    "upper",   "lower",   "capitalize", "title",   "join",    "find",         "rfind",       "count",    "isdigit",
    "isalpha", "isalnum", "isspace",    "isupper", "islower", "removeprefix", "removesuffix"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
// Names that are methods of Python's dict, so no entry of that name is found by attribute; the sandbox forbids them.
constexpr std::string_view kForbiddenDictMethods[] = {"clear", "pop", "popitem", "setdefault", "update", "fromkeys"};
constexpr std::string_view kListMethods[] = {"append", "index", "count"};

template <size_t n>
bool one_of(const std::string_view (&names)[n], std::string_view name) {
  return std::find(names, names + n, name) != names + n;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }
bool is_letter(char32_t c) { return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO; }
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
char32_t upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }

std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for (const char32_t c : to_code_points(text)) {
    const bool cased = upper(c) != c || lower(c) != c;
    append_utf8(out, inside ? lower(c) : title(c));
    inside = cased;
  }
  return out;
}

// str.isupper and str.islower: some cased character, and none of the other case.
bool all_cased(std::string_view text, bool want_upper) {
  bool some = false;
  for (const char32_t c : to_code_points(text)) {
    const bool is_upper = lower(c) != c, is_lower = upper(c) != c;
    if (want_upper ? is_lower && !is_upper : is_upper) return false;
    some = some || is_upper || is_lower;
  }
  return some;
}

bool all_of_class(std::string_view text, bool (*in_class)(char32_t)) {
  const std::u32string all = to_code_points(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), in_class);
}

Value text_list(Runtime& runtime, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Value::of(part));
  return runtime.list(std::move(items));
}

// str.split(None): runs of white space separate, none at the ends; the rest behind `most` words stays as it is.
std::vector<std::string_view> split_words(std::string_view text, Int most) {
  std::vector<std::string_view> parts;
  text = strip_left(text);
  while (!text.empty()) {
    if (most >= 0 && static_cast<Int>(parts.size()) == most) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Decoded c = decode_utf8(text, end);
      if (is_space(c.code_point)) break;
      end += c.length;
    }
    parts.push_back(text.substr(0, end));
    text = strip_left(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> split_words_right(std::string_view text, Int most) {
  std::vector<std::string_view> parts;
  text = strip_right(text);
  while (!text.empty()) {
    if (most >= 0 && static_cast<Int>(parts.size()) == most) {
      parts.push_back(text);
      break;
    }
    std::string_view rest = text;
    while (!rest.empty() && strip_right(rest).size() == rest.size()) {
      do rest.remove_suffix(1);
      while (!rest.empty() && (static_cast<uint8_t>(text[rest.size()]) & 0xC0) == 0x80);
    }
    parts.push_back(text.substr(rest.size()));
    text = strip_right(rest);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, Int most, bool from_right) {
  if (separator.empty()) fail("empty separator");
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<Int>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value call_split(Runtime& runtime, std::string_view self, const Args& args, bool from_right) {
  const Bound bound(args, {"sep", "maxsplit"});
  const Int most = bound.integer(1, -1);
  if (bound[0] == nullptr || bound[0]->is(Type::kNone)) {
    return text_list(runtime, from_right ? split_words_right(self, most) : split_words(self, most));
  }
  if (!bound[0]->is(Type::kString)) fail("a separator must be a string");
  return text_list(runtime, split_at(self, bound[0]->text, most, from_right));
}

std::string_view text_argument(const Bound& bound, size_t i) {
  const Value& value = bound.need(i);
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (!value.is(Type::kString)) fail(fmt::format("expected a string, not '{}'", type_name(value)));
  return value.text;
}

bool begins_or_ends(Runtime& runtime, std::string_view self, const Args& args, bool begins) {
  const Bound bound(args, {"affix"});
  const Value& affix = bound.need(0);
  const auto one = [&](const Value& value) {
    if (value.is(Type::kUndefined)) fail_undefined(value);
    if (!value.is(Type::kString)) fail(fmt::format("expected a string, not '{}'", type_name(value)));
    return begins ? self.starts_with(value.text) : self.ends_with(value.text);
  };
  if (!affix.is(Type::kList) || affix.list->kind != ListKind::kTuple) return one(affix);
  const std::vector<Value> items = iterate(runtime, affix);
  return std::any_of(items.begin(), items.end(), one);
}

Value position(std::string_view self, size_t at) {
  return Value::of(at == std::string_view::npos ? Int{-1} : static_cast<Int>(count_code_points(self.substr(0, at))));
}

Int count_text(std::string_view self, std::string_view part) {
  if (part.empty()) return static_cast<Int>(count_code_points(self)) + 1;
  Int count = 0;
  for (size_t at = 0; (at = self.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

Value join(Runtime& runtime, std::string_view separator, const Value& parts) {
  const std::vector<Value> items = iterate(runtime, parts);
  uint64_t bytes = 0;
  for (const Value& item : items) {
    if (!item.is(Type::kString)) fail(fmt::format("join takes strings, not '{}'", type_name(item)));
    bytes += item.text.size() + separator.size();
  }
  runtime.reserve_bytes(bytes);
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += separator;
    text += items[i].text;
  }
  return runtime.string(std::move(text));
}

std::optional<Value> text_to_text(Runtime& runtime, std::string_view self, std::string_view name, const Args& args) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound bound(args, {"chars"});
    std::string_view kept = strip(self, bound[0]);
    if (name == "lstrip") kept = self.substr(kept.empty() ? self.size() : kept.data() - self.data());
    if (name == "rstrip") kept = self.substr(0, kept.empty() ? 0 : kept.data() + kept.size() - self.data());
    return Value::of(kept);
  }
  if (name == "replace") {
    const Bound bound(args, {"old", "new", "count"});
    return runtime.string(
        replace_text(runtime, self, text_argument(bound, 0), text_argument(bound, 1), bound.integer(2, -1)));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound bound(args, {"affix"});
    const std::string_view affix = text_argument(bound, 0);
    if (name == "removeprefix") return Value::of(self.starts_with(affix) ? self.substr(affix.size()) : self);
    return Value::of(self.ends_with(affix) ? self.substr(0, self.size() - affix.size()) : self);
  }
  std::string (*change)(std::string_view) = name == "upper"        ? to_upper
                                            : name == "lower"      ? to_lower
                                            : name == "capitalize" ? capitalize
                                            : name == "title"      ? title_words
                                                                   : nullptr;
  if (change == nullptr) return std::nullopt;
  const Bound none(args, {});
  return runtime.string(change(self));
}

std::optional<bool> text_class(std::string_view self, std::string_view name) {
  if (name == "isdigit") return all_of_class(self, is_decimal);
  if (name == "isalpha") return all_of_class(self, is_letter);
  if (name == "isalnum") return all_of_class(self, [](char32_t c) { return is_letter(c) || is_decimal(c); });
  if (name == "isspace") return all_of_class(self, is_space);
  if (name == "isupper") return all_cased(self, true);
  if (name == "islower") return all_cased(self, false);
  return std::nullopt;
}

Value call_dict_method(Runtime& runtime, Dict* dict, std::string_view name, const Args& args) {
  if (name == "get") {
    const Bound bound(args, {"key", "default"});
    const Value* found = dict->find(runtime, bound.need(0));
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value::none();
  }
  const Bound none(args, {});
  if (name == "copy") {
    Dict* copy = runtime.dict();
    runtime.work(dict->entries.size());
    *copy = *dict;
    return Value::of(copy);
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict->entries) {
    if (name == "items") {
      items.push_back(runtime.list({key, value}, ListKind::kTuple));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  return runtime.list(std::move(items), ListKind::kView);
}

Value call_list_method(Runtime& runtime, List* list, std::string_view name, const Args& args) {
  const Bound bound(args, {"element"});
  const Value& element = bound.need(0);
  if (name == "append") {
    runtime.work(1);
    list->items.push_back(element);
    return Value::none();
  }
  Int count = 0;
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (!equal(runtime, list->items[i], element)) continue;
    if (name == "index") return Value::of(static_cast<Int>(i));
    ++count;
  }
  if (name == "index") fail("the list has no such element");
  return Value::of(count);
}

}  // namespace

std::string to_upper(std::string_view text) {
  std::string out;
  for (const char32_t c : to_code_points(text)) {
    if (c == 0xDF) {
      out += "SS";
    } else {
      append_utf8(out, upper(c));
    }
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (const char32_t c : to_code_points(text)) append_utf8(out, lower(c));
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const Decoded first = decode_utf8(text, 0);
  std::string out;
  append_utf8(out, title(first.code_point));
  return out += to_lower(text.substr(first.length));
}

std::string_view strip(std::string_view text, const Value* characters) {
  if (characters == nullptr || characters->is(Type::kNone)) return strip_left(strip_right(text));
  if (!characters->is(Type::kString)) fail("characters to strip must be a string");
  const std::u32string set = to_code_points(characters->text);
  const auto goes = [&](const Decoded& c) { return set.find(c.code_point) != std::u32string::npos; };
  size_t begin = 0, end = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    i += c.length;
    if (!goes(c)) end = i;
    if (end == 0) begin = i;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

std::string replace_text(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                         Int count) {
  runtime.scan(text.size());
  std::string out;
  size_t at = 0;
  const auto grow = [&](std::string_view part) {
    if (out.size() + part.size() > Runtime::kMaxBytes) fail("the template makes too much text");
    runtime.scan(part.size());
    out += part;
  };
  for (Int done = 0; count < 0 || done < count; ++done) {
    // An empty `from` matches before every character and at the end.
    const size_t found = from.empty() ? at : text.find(from, at);
    if (found == std::string_view::npos) break;
    grow(text.substr(at, found - at));
    grow(to);
    at = found + from.size();
    if (!from.empty()) continue;
    if (at == text.size()) return out;
    const uint32_t length = decode_utf8(text, at).length;
    grow(text.substr(at, length));
    at += length;
  }
  grow(text.substr(at));
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    const char32_t code = c.code_point;
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    const size_t end = i;
    i += c.length;
    if (!ends) continue;
    if (code == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, end - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

bool has_method(const Value& value, std::string_view name) {
  if (value.is(Type::kString)) return one_of(kStringMethods, name);
  if (value.is(Type::kDict)) return one_of(kDictMethods, name) || one_of(kForbiddenDictMethods, name);
  if (!value.is(Type::kList) || value.list->kind > ListKind::kTuple) return false;
  return one_of(kListMethods, name) && (name != "append" || value.list->kind == ListKind::kList);
}

Value call_string_method(Runtime& runtime, std::string_view self, std::string_view name, const Args& args) {
  runtime.scan(self.size());
  if (const auto text = text_to_text(runtime, self, name, args)) return *text;
  if (const auto in_class = text_class(self, name)) return Value::of(*in_class);
  if (name == "split" || name == "rsplit") return call_split(runtime, self, args, name == "rsplit");
  if (name == "splitlines") {
    const Bound none(args, {});
    return text_list(runtime, split_lines(self));
  }
  if (name == "startswith" || name == "endswith") {
    return Value::of(begins_or_ends(runtime, self, args, name == "startswith"));
  }
  const Bound bound(args, {"argument"});
  if (name == "join") return join(runtime, self, bound.need(0));
  const std::string_view part = text_argument(bound, 0);
  if (name == "find") return position(self, self.find(part));
  if (name == "rfind") return position(self, self.rfind(part));
  return Value::of(count_text(self, part));
}

Value call_method(Interpreter& interpreter, const Value& self, std::string_view name, const Args& args) {
  Runtime& runtime = interpreter.runtime();
  if (self.is(Type::kString)) return call_string_method(runtime, self.text, name, args);
  if (self.is(Type::kList)) return call_list_method(runtime, self.list, name, args);
  if (self.is(Type::kLoop)) {
    if (args.positional.empty()) fail("cycle takes values");
    return args.positional[self.loop->index % args.positional.size()];
  }
  if (one_of(kForbiddenDictMethods, name)) fail(fmt::format("a template may not call '{}'", name));
  return call_dict_method(runtime, self.dict, name, args);
}

}  // namespace assay::text::jinja
