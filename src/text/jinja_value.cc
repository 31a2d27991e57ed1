#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace assay::text::jinja {

void fail(std::string message) { throw Fault{std::move(message)}; }

void Runtime::work(uint64_t units) {
  work_ += units;
  if (work_ > kMaxWork) fail("the template takes too much work");
}

void Runtime::reserve_bytes(uint64_t bytes) {
  bytes_ += bytes;
  work(bytes / kBytesPerWork + 1);
  if (bytes_ > kMaxBytes) fail("the template makes too much text");
}

Value Runtime::string(std::string text) {
  reserve_bytes(text.size());
  strings_.push_back(std::move(text));
  return Value::of(std::string_view(strings_.back()));
}

Value Runtime::list(std::vector<Value> items, ListKind kind) {
  work(items.size() + 1);
  lists_.push_back({kind, std::move(items)});
  return Value::of(&lists_.back());
}

Dict* Runtime::dict() {
  work(1);
  return &dicts_.emplace_back();
}

Scope* Runtime::scope(Scope* parent) {
  work(1);
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  return &scope;
}

const Callable* Runtime::callable(Callable callable) {
  work(1);
  callables_.push_back(callable);
  return &callables_.back();
}

Runtime::Deeper::Deeper(Runtime& runtime) : runtime_(runtime) {
  if (runtime_.depth_ >= kMaxDepth) fail("nested too deeply");
  ++runtime_.depth_;
}

const Value* Scope::find_here(std::string_view name) const {
  for (const auto& [key, value] : variables) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, const Value& value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = value;
      return;
    }
  }
  variables.emplace_back(name, value);
}

namespace {

void check_hashable(Runtime& runtime, const Value& key) {
  const bool tuple = key.is(Type::kList) && key.list->kind == ListKind::kTuple;
  if (key.is(Type::kDict) || (key.is(Type::kList) && !tuple))
    fail(fmt::format("unhashable type: '{}'", type_name(key)));
  if (!tuple) return;
  const Runtime::Deeper deeper(runtime);
  for (const Value& item : key.list->items) check_hashable(runtime, item);
}

}  // namespace

const Value* Dict::find(Runtime& runtime, const Value& key) const {
  if (key.is(Type::kString)) {
    const auto it = by_text.find(key.text);
    return it == by_text.end() ? nullptr : &entries[it->second].second;
  }
  check_hashable(runtime, key);
  for (const auto& [other, value] : entries) {
    if (!other.is(Type::kString) && equal(runtime, other, key)) return &value;
  }
  return nullptr;
}

void Dict::set(Runtime& runtime, const Value& key, const Value& value) {
  runtime.work(1);
  if (const Value* old = find(runtime, key)) {
    *const_cast<Value*>(old) = value;
    return;
  }
  if (key.is(Type::kString)) by_text.emplace(key.text, entries.size());
  entries.emplace_back(key, value);
}

std::string_view type_name(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kDict:
      return "dict";
    case Type::kCallable:
      return "function";
    case Type::kNamespace:
      return "Namespace";
    case Type::kLoop:
      return "LoopContext";
    case Type::kList:
      break;
  }
  switch (value.list->kind) {
    case ListKind::kList:
      return "list";
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kGenerator:
      return "generator";
    case ListKind::kView:
      break;
  }
  return "dict_view";
}

bool truth(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return value.boolean;
    case Type::kInt:
      return value.integer != 0;
    case Type::kFloat:
      return value.real != 0;
    case Type::kString:
      return !value.text.empty();
    case Type::kList:
      return value.list->kind == ListKind::kGenerator || !value.list->items.empty();
    case Type::kDict:
      return !value.dict->entries.empty();
    default:
      return true;
  }
}

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  runtime.work(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      runtime.scan(std::min(a.text.size(), b.text.size()));
      return a.text == b.text;
    case Type::kList: {
      if (a.list == b.list) return true;
      if (a.list->kind != b.list->kind || a.list->items.size() != b.list->items.size()) return false;
      if (a.list->kind == ListKind::kGenerator) return false;
      const Runtime::Deeper deeper(runtime);
      for (size_t i = 0; i < a.list->items.size(); ++i) {
        if (!equal(runtime, a.list->items[i], b.list->items[i])) return false;
      }
      return true;
    }
    case Type::kDict: {
      if (a.dict == b.dict) return true;
      if (a.dict->entries.size() != b.dict->entries.size()) return false;
      const Runtime::Deeper deeper(runtime);
      for (const auto& [key, value] : a.dict->entries) {
        const Value* other = b.dict->find(runtime, key);
        if (other == nullptr || !equal(runtime, value, *other)) return false;
      }
      return true;
    }
    case Type::kCallable:
      return a.callable == b.callable;
    case Type::kNamespace:
      return a.space == b.space;
    default:
      return a.loop == b.loop;
  }
}

int compare(Runtime& runtime, const Value& a, const Value& b) {
  runtime.work(1);
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return sign(a.as_int(), b.as_int());
    return sign(a.as_float(), b.as_float());
  }
  if (a.is(Type::kString) && b.is(Type::kString)) {
    runtime.scan(std::min(a.text.size(), b.text.size()));
    return sign(a.text, b.text);  // the order of UTF-8 bytes is that of code points
  }
  if (a.is(Type::kList) && b.is(Type::kList) && a.list->kind == b.list->kind && a.list->kind <= ListKind::kTuple) {
    const Runtime::Deeper deeper(runtime);
    const auto& x = a.list->items;
    const auto& y = b.list->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(runtime, x[i], y[i])) return compare(runtime, x[i], y[i]);
    }
    return sign(x.size(), y.size());
  }
  fail(fmt::format("no order between '{}' and '{}'", type_name(a), type_name(b)));
}

std::vector<Value> iterate(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  switch (value.type) {
    case Type::kUndefined:
      break;
    case Type::kString:
      for (size_t i = 0; i < value.text.size();) {
        const uint32_t bytes = decode_utf8(value.text, i).length;
        items.push_back(Value::of(value.text.substr(i, bytes)));
        i += bytes;
        runtime.work(1);
      }
      break;
    case Type::kList:
      runtime.work(value.list->items.size());
      if (value.list->kind == ListKind::kGenerator) return std::exchange(value.list->items, {});
      return value.list->items;
    case Type::kDict:
      runtime.work(value.dict->entries.size());
      for (const auto& entry : value.dict->entries) items.push_back(entry.first);
      break;
    default:
      fail(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return items;
}

Int length(Runtime& runtime, const Value& value) {
  if (value.is(Type::kUndefined)) return 0;
  if (value.is(Type::kString)) {
    runtime.scan(value.text.size());
    return static_cast<Int>(count_code_points(value.text));
  }
  if (value.is(Type::kDict)) return static_cast<Int>(value.dict->entries.size());
  if (value.is(Type::kList) && value.list->kind != ListKind::kGenerator)
    return static_cast<Int>(value.list->items.size());
  fail(fmt::format("object of type '{}' has no length", type_name(value)));
}

bool contains(Runtime& runtime, const Value& container, const Value& element) {
  if (container.is(Type::kString)) {
    if (!element.is(Type::kString)) fail(fmt::format("a string contains only strings, not '{}'", type_name(element)));
    runtime.scan(container.text.size() + element.text.size());
    return container.text.find(element.text) != std::string_view::npos;
  }
  if (container.is(Type::kDict)) return container.dict->find(runtime, element) != nullptr;
  const std::vector<Value> items = iterate(runtime, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(runtime, item, element); });
}

Value from_json(Runtime& runtime, const nlohmann::ordered_json& json) {
  using Kind = nlohmann::ordered_json::value_t;
  const Runtime::Deeper deeper(runtime);
  switch (json.type()) {
    case Kind::boolean:
      return Value::of(json.get<bool>());
    case Kind::number_integer:
      return Value::of(static_cast<Int>(json.get<int64_t>()));
    case Kind::number_unsigned:
      return Value::of(static_cast<Int>(json.get<uint64_t>()));
    case Kind::number_float:
      return Value::of(json.get<double>());
    case Kind::string: {
      const std::string& text = json.get_ref<const std::string&>();
      return is_valid_utf8(text) ? Value::of(std::string_view(text)) : runtime.string(repair_utf8(text));
    }
    case Kind::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(runtime, item));
      return runtime.list(std::move(items));
    }
    case Kind::object: {
      Dict* dict = runtime.dict();
      for (auto it = json.begin(); it != json.end(); ++it) {
        const std::string& key = it.key();
        const Value name = is_valid_utf8(key) ? Value::of(std::string_view(key)) : runtime.string(repair_utf8(key));
        dict->set(runtime, name, from_json(runtime, it.value()));
      }
      return Value::of(dict);
    }
    default:
      return Value::none();
  }
}

}  // namespace assay::text::jinja
