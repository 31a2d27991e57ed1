// Operators, functions and the binding of arguments.

#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "text/jinja_builtins.h"

namespace assay::text::jinja {
namespace {

constexpr Int kMaxRange = 100'000;  // elements, as in jinja2's sandbox

Int checked(std::string_view op, Int a, Int b) {
  Int result = 0;
  const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &result)
                        : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                    : __builtin_mul_overflow(a, b, &result);
  if (overflow) fail("integer too large");
  return result;
}

Int floor_divide(Int a, Int b) {
  if (b == 0) fail("division by zero");
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value power(Runtime& runtime, Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) fail("zero to a negative power");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base >= -1 && base <= 1) exponent = exponent == 0 ? 0 : exponent % 2 == 0 ? 2 : 1;
  Int result = 1;
  for (Int i = 0; i < exponent; ++i) {
    runtime.work(1);
    result = checked("*", result, base);
  }
  return Value::of(result);
}

double float_operation(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if (a < 0 && b != std::floor(b)) fail("power of a negative number is not real");
    if (a == 0 && b < 0) fail("zero to a negative power");
    return std::pow(a, b);
  }
  if (b == 0) fail("division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = (a - rest) / b;
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

Value number_operation(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (!a.is_integral() || !b.is_integral()) return Value::of(float_operation(op, a.as_float(), b.as_float()));
  const Int x = a.as_int(), y = b.as_int();
  if (op == "/") return Value::of(float_operation(op, a.as_float(), b.as_float()));
  if (op == "//") return Value::of(floor_divide(x, y));
  if (op == "%") return Value::of(x - floor_divide(x, y) * y);
  if (op == "**") return power(runtime, x, y);
  return Value::of(checked(op, x, y));
}

Value repeat(Runtime& runtime, const Value& value, Int count) {
  if (count < 0) count = 0;
  const auto size = static_cast<Int>(value.is(Type::kString) ? value.text.size() : value.list->items.size());
  if (size > 0 && count > static_cast<Int>(Runtime::kMaxBytes) / size) fail("the template makes too much text");
  if (value.is(Type::kString)) {
    runtime.reserve_bytes(static_cast<uint64_t>(size * count));
    std::string text;
    for (Int i = 0; i < count && size > 0; ++i) text += value.text;
    return runtime.string(std::move(text));
  }
  runtime.work(static_cast<uint64_t>(size * count));
  std::vector<Value> items;
  for (Int i = 0; i < count && size > 0; ++i) {
    items.insert(items.end(), value.list->items.begin(), value.list->items.end());
  }
  return runtime.list(std::move(items), value.list->kind);
}

bool is_sequence(const Value& value) {
  return value.is(Type::kString) || (value.is(Type::kList) && value.list->kind <= ListKind::kTuple);
}

Value call_range(Runtime& runtime, const Args& args) {
  const Bound bound(args, {"start", "stop", "step"});
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i] != nullptr && !bound[i]->is_integral()) fail("range takes integers");
  }
  bound.need(0);
  const Int first = bound.integer(0, 0);
  const Int start = bound[1] == nullptr ? 0 : first, stop = bound[1] == nullptr ? first : bound.integer(1, 0);
  const Int step = bound.integer(2, 1);
  if (step == 0) fail("range step cannot be zero");
  std::vector<Value> items;
  for (Int i = start; step > 0 ? i < stop : i > stop; i = checked("+", i, step)) {
    if (static_cast<Int>(items.size()) >= kMaxRange) fail(fmt::format("range of more than {} elements", kMaxRange));
    items.push_back(Value::of(i));
  }
  return runtime.list(std::move(items));
}

// dict() and namespace() take a dictionary or pairs, and named entries.
Dict* call_dict(Runtime& runtime, const Args& args) {
  if (args.positional.size() > 1) fail("dict takes at most one positional argument");
  Dict* dict = runtime.dict();
  if (!args.positional.empty() && args.positional[0].is(Type::kDict)) {
    for (const auto& [key, value] : args.positional[0].dict->entries) dict->set(runtime, key, value);
  } else if (!args.positional.empty()) {
    for (const Value& pair : iterate(runtime, args.positional[0])) {
      const std::vector<Value> parts = iterate(runtime, pair);
      if (parts.size() != 2) fail("dict takes pairs");
      dict->set(runtime, parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : args.named) dict->set(runtime, Value::of(name), value);
  return dict;
}

Value call_namespace(Runtime& runtime, const Args& args) {
  Namespace* space = runtime.name_space();
  for (const auto& [key, value] : call_dict(runtime, args)->entries) {
    if (!key.is(Type::kString)) fail("names of a namespace are strings");
    if (key.text.starts_with('_')) fail("attributes of a namespace cannot begin with '_'");
    space->attributes[key.text] = value;
  }
  return Value::of(space);
}

Value call_strftime_now(Runtime& runtime, const Args& args) {
  const Bound bound(args, {"format"});
  const std::string format(to_text(runtime, bound.need(0)));
  if (format.empty()) return Value::of(std::string_view());
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[1024];
  const size_t length = std::strftime(text, sizeof(text), format.c_str(), &local);
  if (length == 0) fail("strftime_now: the date is too long");
  return runtime.string(std::string(text, length));
}

}  // namespace

Bound::Bound(const Args& args, std::initializer_list<std::string_view> names) {
  if (args.positional.size() > names.size()) fail(fmt::format("at most {} arguments are taken", names.size()));
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size()) fail(fmt::format("unknown argument '{}'", name));
    if (values_[i] != nullptr) fail(fmt::format("argument '{}' is given twice", name));
    values_[i] = &value;
  }
}

const Value& Bound::need(size_t i) const {
  if (values_[i] == nullptr) fail("an argument is missing");
  return *values_[i];
}

Int Bound::integer(size_t i, Int otherwise) const {
  if (values_[i] == nullptr || values_[i]->is(Type::kNone)) return otherwise;
  if (!values_[i]->is_integral()) fail(fmt::format("expected an integer, not '{}'", type_name(*values_[i])));
  return values_[i]->as_int();
}

void fail_undefined(const Value& value) { fail(fmt::format("'{}' is undefined", value.text)); }

Value arithmetic(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is(Type::kUndefined)) fail_undefined(*value);
  }
  if (a.is_number() && b.is_number()) return number_operation(runtime, op, a, b);
  if (op == "+" && a.is(Type::kString) && b.is(Type::kString)) {
    runtime.reserve_bytes(a.text.size() + b.text.size());
    std::string text(a.text);
    return runtime.string(text += b.text);
  }
  if (op == "+" && is_sequence(a) && is_sequence(b) && a.type == b.type && a.list->kind == b.list->kind) {
    std::vector<Value> items = a.list->items;
    runtime.work(items.size());
    items.insert(items.end(), b.list->items.begin(), b.list->items.end());
    return runtime.list(std::move(items), a.list->kind);
  }
  if (op == "*" && is_sequence(a) && b.is_integral()) return repeat(runtime, a, b.as_int());
  if (op == "*" && a.is_integral() && is_sequence(b)) return repeat(runtime, b, a.as_int());
  fail(fmt::format("unsupported operands for {}: '{}' and '{}'", op, type_name(a), type_name(b)));
}

bool is_global(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

Value call_global(Interpreter& interpreter, std::string_view name, const Args& args) {
  Runtime& runtime = interpreter.runtime();
  if (name == "range") return call_range(runtime, args);
  if (name == "namespace") return call_namespace(runtime, args);
  if (name == "dict") return Value::of(call_dict(runtime, args));
  if (name == "strftime_now") return call_strftime_now(runtime, args);
  const Bound bound(args, {"message"});
  throw Fault{std::string(to_text(runtime, bound.need(0))), 0, true};
}

}  // namespace assay::text::jinja
