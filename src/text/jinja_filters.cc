// Filters.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"
#include "text/utf8.h"

namespace assay::text::jinja {
namespace {

using Filter = Value (*)(Interpreter&, const Value&, const Args&);

// "a.b.0" as the attribute argument of filters: names and element numbers. `otherwise`, if given, takes the place of
// what is undefined on the way.
Value path_value(Interpreter& interpreter, Value value, const Value& path, const Value* otherwise = nullptr) {
  const auto step = [&](const Value& key) {
    value = interpreter.item(value, key);
    if (value.is(Type::kUndefined) && otherwise != nullptr && !otherwise->is(Type::kNone)) value = *otherwise;
  };
  if (path.is_integral()) {
    step(path);
    return value;
  }
  if (!path.is(Type::kString)) fail("an attribute must be a string or an integer");
  std::string_view rest = path.text;
  while (true) {
    const size_t point = rest.find('.');
    const std::string_view name = rest.substr(0, point);
    const bool number = !name.empty() && name.size() < 10 &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    Value key = Value::of(name);
    if (number) key = Value::of(static_cast<Int>(std::stoll(std::string(name))));
    step(key);
    if (point == std::string_view::npos) return value;
    rest.remove_prefix(point + 1);
  }
}

// What sort, unique, min and max compare: the element or its attributes ("a,b"), strings without regard to case.
Value sort_key(Interpreter& interpreter, const Value& element, const Value* path, bool case_sensitive) {
  const auto fold = [&](const Value& value) {
    return case_sensitive || !value.is(Type::kString) ? value : interpreter.runtime().string(to_lower(value.text));
  };
  if (path == nullptr || path->is(Type::kNone)) return fold(element);
  if (!path->is(Type::kString) || path->text.find(',') == std::string_view::npos) {
    return fold(path_value(interpreter, element, *path));
  }
  std::vector<Value> keys;
  std::string_view rest = path->text;
  while (true) {
    const size_t comma = rest.find(',');
    keys.push_back(fold(path_value(interpreter, element, Value::of(rest.substr(0, comma)))));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return interpreter.runtime().list(std::move(keys));
}

struct Keyed {
  Value key, value;
};

void sort_keyed(Runtime& runtime, std::vector<Keyed>& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(runtime, b.key, a.key) < 0 : compare(runtime, a.key, b.key) < 0;
  });
}

Value values_of(Runtime& runtime, const std::vector<Keyed>& items) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const Keyed& item : items) values.push_back(item.value);
  return runtime.list(std::move(values));
}

Value sort_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> items;
  for (const Value& item : iterate(in.runtime(), value)) {
    items.push_back({sort_key(in, item, bound[2], bound.flag(1)), item});
  }
  sort_keyed(in.runtime(), items, bound.flag(0));
  return values_of(in.runtime(), items);
}

Value dictsort_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"case_sensitive", "by", "reverse"});
  if (!value.is(Type::kDict)) fail("dictsort takes a dictionary");
  const std::string_view by = bound[1] == nullptr ? "key" : to_text(in.runtime(), *bound[1]);
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value'");
  std::vector<Keyed> items;
  for (const auto& [key, entry] : value.dict->entries) {
    items.push_back({sort_key(in, by == "key" ? key : entry, nullptr, bound.flag(0)),
                     in.runtime().list({key, entry}, ListKind::kTuple)});
  }
  sort_keyed(in.runtime(), items, bound.flag(2));
  return values_of(in.runtime(), items);
}

Value unique_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"case_sensitive", "attribute"});
  std::vector<Value> kept;
  Dict seen;
  for (const Value& item : iterate(in.runtime(), value)) {
    const Value key = sort_key(in, item, bound[1], bound.flag(0));
    if (seen.find(in.runtime(), key) != nullptr) continue;
    seen.set(in.runtime(), key, Value::none());
    kept.push_back(item);
  }
  return in.runtime().list(std::move(kept), ListKind::kGenerator);
}

Value extreme(Interpreter& in, const Value& value, const Args& args, int sign) {
  const Bound bound(args, {"case_sensitive", "attribute"});
  std::optional<Keyed> best;
  for (const Value& item : iterate(in.runtime(), value)) {
    const Keyed keyed{sort_key(in, item, bound[1], bound.flag(0)), item};
    if (!best || compare(in.runtime(), keyed.key, best->key) * sign > 0) best = keyed;
  }
  return best ? best->value : Value::undefined("the extreme of an empty sequence");
}

Value sum_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"attribute", "start"});
  Value total = bound[1] == nullptr ? Value::of(Int{0}) : *bound[1];
  for (const Value& item : iterate(in.runtime(), value)) {
    const bool whole = bound[0] == nullptr || bound[0]->is(Type::kNone);
    total = arithmetic(in.runtime(), "+", total, whole ? item : path_value(in, item, *bound[0]));
  }
  return total;
}

Value map_filter(Interpreter& in, const Value& value, const Args& args) {
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Bound bound(args, {"attribute", "default"});
    const Value& path = bound.need(0);
    for (const Value& item : iterate(in.runtime(), value)) out.push_back(path_value(in, item, path, bound[1]));
    return in.runtime().list(std::move(out), ListKind::kGenerator);
  }
  Args rest = args;
  const std::string_view name = to_text(in.runtime(), args.positional[0]);
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : iterate(in.runtime(), value)) out.push_back(in.filter(name, item, rest));
  return in.runtime().list(std::move(out), ListKind::kGenerator);
}

// select, reject, selectattr, rejectattr: the elements (or their attribute) that pass a test, or that are true.
Value choose(Interpreter& in, const Value& value, const Args& args, bool by_attribute, bool wanted) {
  Args rest = args;
  std::optional<Value> path;
  const auto shift = [&] {
    const Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (by_attribute) {
    if (rest.positional.empty()) fail("the attribute's name is missing");
    path = shift();
  }
  std::string_view test;
  if (!rest.positional.empty()) test = to_text(in.runtime(), shift());
  std::vector<Value> kept;
  for (const Value& item : iterate(in.runtime(), value)) {
    const Value subject = path ? path_value(in, item, *path) : item;
    if ((test.empty() ? truth(subject) : in.test(test, subject, rest)) == wanted) kept.push_back(item);
  }
  return in.runtime().list(std::move(kept), ListKind::kGenerator);
}

Value tojson_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0);
  style.sort_keys = bound.flag(3);
  if (bound[1] != nullptr && !bound[1]->is(Type::kNone)) {
    style.indent = static_cast<int>(std::clamp(bound.integer(1, 0), Int{0}, Int{64}));
    style.item_separator = ",";
  }
  if (bound[2] != nullptr && !bound[2]->is(Type::kNone)) {
    const std::vector<Value> parts = iterate(in.runtime(), *bound[2]);
    if (parts.size() != 2) fail("separators are two strings");
    style.item_separator = to_text(in.runtime(), parts[0]);
    style.key_separator = to_text(in.runtime(), parts[1]);
  }
  return in.runtime().string(to_json(in.runtime(), value, style));
}

Value items_filter(Interpreter& in, const Value& value, const Args&) {
  if (!value.is(Type::kUndefined) && !value.is(Type::kDict)) fail("items takes a dictionary");
  std::vector<Value> items;
  if (value.is(Type::kDict)) {
    for (const auto& [key, entry] : value.dict->entries) {
      items.push_back(in.runtime().list({key, entry}, ListKind::kTuple));
    }
  }
  return in.runtime().list(std::move(items), ListKind::kGenerator);
}

Value default_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound(args, {"default_value", "boolean"});
  const bool replaced = value.is(Type::kUndefined) || (bound.flag(1) && !truth(value));
  if (!replaced) return value;
  return bound[0] == nullptr ? Value::of(std::string_view()) : *bound[0];
}

Value join_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"d", "attribute"});
  const std::string_view separator = bound[0] == nullptr ? std::string_view() : to_text(in.runtime(), *bound[0]);
  std::vector<Value> parts;
  for (const Value& item : iterate(in.runtime(), value)) {
    const bool whole = bound[1] == nullptr || bound[1]->is(Type::kNone);
    parts.push_back(Value::of(to_text(in.runtime(), whole ? item : path_value(in, item, *bound[1]))));
  }
  Args joined;
  joined.positional.push_back(in.runtime().list(std::move(parts)));
  return call_string_method(in.runtime(), separator, "join", joined);
}

Value first_filter(Interpreter& in, const Value& value, const Args&) {
  const std::vector<Value> items = iterate(in.runtime(), value);
  return items.empty() ? Value::undefined("the first of an empty sequence") : items.front();
}

Value last_filter(Interpreter& in, const Value& value, const Args&) {
  const std::vector<Value> items = iterate(in.runtime(), value);
  return items.empty() ? Value::undefined("the last of an empty sequence") : items.back();
}

Value reverse_filter(Interpreter& in, const Value& value, const Args&) {
  std::vector<Value> items = iterate(in.runtime(), value);
  std::reverse(items.begin(), items.end());
  if (!value.is(Type::kString)) return in.runtime().list(std::move(items), ListKind::kGenerator);
  std::string text;
  for (const Value& item : items) text += item.text;
  return in.runtime().string(std::move(text));
}

Value title_filter(Interpreter& in, const Value& value, const Args&) {
  std::string out, word;
  const auto finish = [&] {
    out += capitalize(word);
    word.clear();
  };
  const std::string_view text = to_text(in.runtime(), value);
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    const bool separates = is_space(c.code_point) ||
                           (c.code_point < 0x80 &&
                            std::string_view("-({[<").find(static_cast<char>(c.code_point)) != std::string_view::npos);
    if (separates) finish();
    (separates ? out : word).append(text.substr(i, c.length));
    i += c.length;
  }
  finish();
  return in.runtime().string(std::move(out));
}

Value replace_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"old", "new", "count"});
  Runtime& runtime = in.runtime();
  const std::string_view from = to_text(runtime, bound.need(0)), to = to_text(runtime, bound.need(1));
  return runtime.string(replace_text(runtime, to_text(runtime, value), from, to, bound.integer(2, -1)));
}

// Python's int(text): white space around, a sign, digits.
std::optional<Int> parse_whole(std::string_view text) {
  text = strip_left(strip_right(text));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.size() > 30) return std::nullopt;
  Int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string stripped(strip_left(strip_right(text)));
  if (stripped.empty() || stripped.find_first_of("xX(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(stripped.c_str(), &end);
  if (*end != '\0' || end != stripped.c_str() + stripped.size()) return std::nullopt;
  return value;
}

std::optional<double> as_real(const Value& value) {
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is_number()) return value.as_float();
  return value.is(Type::kString) ? parse_real(value.text) : std::nullopt;
}

Value int_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound(args, {"default", "base"});
  if (bound.integer(1, 10) != 10) fail("int knows base 10 only");
  if (value.is_integral()) return Value::of(value.as_int());
  if (value.is(Type::kString)) {
    if (const auto whole = parse_whole(value.text)) return Value::of(*whole);
  }
  const auto real = as_real(value);
  if (real && std::abs(*real) < 1e30) return Value::of(static_cast<Int>(*real));
  return bound[0] == nullptr ? Value::of(Int{0}) : *bound[0];
}

Value float_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound(args, {"default"});
  if (const auto real = as_real(value)) return Value::of(*real);
  return bound[0] == nullptr ? Value::of(0.0) : *bound[0];
}

Value abs_filter(Interpreter& in, const Value& value, const Args&) {
  if (value.is(Type::kFloat)) return Value::of(std::abs(value.real));
  if (!value.is_integral()) fail("abs takes a number");
  return value.as_int() < 0 ? arithmetic(in.runtime(), "-", Value::of(Int{0}), value) : Value::of(value.as_int());
}

Value round_filter(Interpreter&, const Value& value, const Args& args) {
  const Bound bound(args, {"precision", "method"});
  const auto places = static_cast<int>(std::clamp(bound.integer(0, 0), Int{-300}, Int{300}));
  const Value* method = bound[1];
  if (!value.is_number()) fail("round takes a number");
  if (method == nullptr || (method->is(Type::kString) && method->text == "common")) {
    if (value.is_integral() && places >= 0) return Value::of(value.as_int());
    if (places < 0) {
      const double unit = std::pow(10.0, -places);
      const double rounded = std::nearbyint(value.as_float() / unit) * unit;
      return value.is_integral() ? Value::of(static_cast<Int>(rounded)) : Value::of(rounded);
    }
    // printf rounds the exact binary value to nearest, ties to even: what Python's round does.
    char text[800];
    std::snprintf(text, sizeof(text), "%.*f", places, value.real);
    return Value::of(std::strtod(text, nullptr));
  }
  const double unit = std::pow(10.0, places);
  if (method->is(Type::kString) && method->text == "ceil") return Value::of(std::ceil(value.as_float() * unit) / unit);
  if (method->is(Type::kString) && method->text == "floor")
    return Value::of(std::floor(value.as_float() * unit) / unit);
  fail("round knows 'common', 'ceil' and 'floor'");
}

Value indent_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"width", "first", "blank"});
  std::string margin(4, ' ');
  if (bound[0] != nullptr && bound[0]->is(Type::kString)) {
    margin = bound[0]->text;
  } else if (bound[0] != nullptr) {
    margin.assign(static_cast<size_t>(std::clamp(bound.integer(0, 4), Int{0}, Int{1000})), ' ');
  }
  const std::string text = std::string(to_text(in.runtime(), value)) + "\n";
  const std::vector<std::string_view> lines = split_lines(text);
  in.runtime().reserve_bytes(text.size() + lines.size() * margin.size());
  std::string out = bound.flag(1) ? margin : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (bound.flag(2) || !lines[i].empty())) out += margin;
    out += lines[i];
  }
  return in.runtime().string(std::move(out));
}

Value trim_filter(Interpreter& in, const Value& value, const Args& args) {
  const Bound bound(args, {"chars"});
  const std::string_view text = to_text(in.runtime(), value);
  in.runtime().scan(text.size());
  return Value::of(strip(text, bound[0]));
}

template <std::string (*change)(std::string_view)>
Value text_filter(Interpreter& in, const Value& value, const Args&) {
  const std::string_view text = to_text(in.runtime(), value);
  return in.runtime().string(change(text));
}

Value string_filter(Interpreter& in, const Value& value, const Args&) {
  return Value::of(to_text(in.runtime(), value));
}
Value length_filter(Interpreter& in, const Value& value, const Args&) { return Value::of(length(in.runtime(), value)); }
Value list_filter(Interpreter& in, const Value& value, const Args&) {
  return in.runtime().list(iterate(in.runtime(), value));
}
Value min_filter(Interpreter& in, const Value& value, const Args& args) { return extreme(in, value, args, -1); }
Value max_filter(Interpreter& in, const Value& value, const Args& args) { return extreme(in, value, args, 1); }
Value select_filter(Interpreter& in, const Value& value, const Args& args) {
  return choose(in, value, args, false, true);
}
Value reject_filter(Interpreter& in, const Value& value, const Args& args) {
  return choose(in, value, args, false, false);
}
Value selectattr_filter(Interpreter& in, const Value& value, const Args& args) {
  return choose(in, value, args, true, true);
}
Value rejectattr_filter(Interpreter& in, const Value& value, const Args& args) {
  return choose(in, value, args, true, false);
}

const std::unordered_map<std::string_view, Filter>& filters() {
  // Nothing is escaped in chat templates, so `safe` changes nothing.
  static const std::unordered_map<std::string_view, Filter> table = {
      {"abs", abs_filter},
      {"capitalize", text_filter<capitalize>},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"first", first_filter},
      {"float", float_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length_filter},
      {"list", list_filter},
      {"lower", text_filter<to_lower>},
      {"map", map_filter},
      {"max", max_filter},
      {"min", min_filter},
      {"reject", reject_filter},
      {"rejectattr", rejectattr_filter},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"safe", string_filter},
      {"select", select_filter},
      {"selectattr", selectattr_filter},
      {"sort", sort_filter},
      {"string", string_filter},
      {"sum", sum_filter},
      {"title", title_filter},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"unique", unique_filter},
      {"upper", text_filter<to_upper>},
  };
  return table;
}

}  // namespace

Value Interpreter::filter(std::string_view name, const Value& value, const Args& args) {
  const Runtime::Deeper deeper(runtime_);
  runtime_.work(1);
  const auto it = filters().find(name);
  if (it == filters().end()) fail(fmt::format("no filter named '{}'", name));
  return it->second(*this, value, args);
}

}  // namespace assay::text::jinja
