#include "text/jinja_interpreter.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja_builtins.h"
#include "text/utf8.h"

namespace assay::text::jinja {
namespace {

// Sets a variable for the length of a C++ scope.
template <class T>
class Swapped {
 public:
  Swapped(T& place, T value) : place_(place), old_(std::exchange(place, value)) {}
  ~Swapped() { place_ = old_; }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  T& place_;
  T old_;
};

// Element numbers of a Python slice of a sequence of `size` elements.
std::vector<size_t> slice_indices(Runtime& runtime, const Value (&bounds)[3], Int size) {
  const auto whole = [](const Value& v, Int absent) {
    if (v.is(Type::kNone)) return absent;
    if (!v.is_integral()) fail("slice bounds must be integers or none");
    return v.as_int();
  };
  const Int step = whole(bounds[2], 1);
  if (step == 0) fail("slice step cannot be zero");
  const Int low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](const Value& v, Int absent) {
    if (v.is(Type::kNone)) return absent;
    const Int i = whole(v, 0);
    return std::clamp(i < 0 ? i + size : i, low, high);
  };
  const Int start = place(bounds[0], step > 0 ? low : high), stop = place(bounds[1], step > 0 ? high : low);
  std::vector<size_t> indices;
  for (Int i = start; step > 0 ? i < stop : i > stop; i += step) {
    runtime.work(1);
    indices.push_back(static_cast<size_t>(i));
    if (step > size || step < -size) break;  // also keeps i + step from overflowing
  }
  return indices;
}

Value loop_attribute(Runtime& runtime, Loop* loop, std::string_view name) {
  const auto number = [](size_t n) { return Value::of(static_cast<Int>(n)); };
  const size_t i = loop->index, count = loop->items.size();
  if (name == "index") return number(i + 1);
  if (name == "index0") return number(i);
  if (name == "revindex") return number(count - i);
  if (name == "revindex0") return number(count - i - 1);
  if (name == "first") return Value::of(i == 0);
  if (name == "last") return Value::of(i + 1 == count);
  if (name == "length") return number(count);
  if (name == "depth") return number(1);  // counts recursive loops only, which there are none of
  if (name == "depth0") return number(0);
  if (name == "previtem") return i > 0 ? loop->items[i - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < count ? loop->items[i + 1] : Value::undefined("there is no next item");
  if (name == "cycle") return Value::of(runtime.callable({Callable::Kind::kMethod, "cycle", Value::of(loop)}));
  return Value::undefined(name);
}

}  // namespace

std::string Interpreter::run(const Template& tree) {
  // The template's own variables hide those of the context.
  const Swapped scope(scope_, runtime_.scope(scope_));
  std::string out;
  const Swapped<std::string*> to(out_, &out);
  run_body(tree.body);
  return out;
}

void Interpreter::emit(std::string_view text) {
  runtime_.reserve_bytes(text.size());
  out_->append(text);
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  const Runtime::Deeper deeper(runtime_);
  for (const Stmt* stmt : body) {
    try {
      if (const Flow flow = run_statement(*stmt); flow != Flow::kNext) return flow;
    } catch (Fault& fault) {
      if (fault.line == 0) fault.line = stmt->line;
      throw;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& stmt) {
  runtime_.work(1);
  switch (stmt.kind) {
    case StmtKind::kText:
      emit(stmt.text);
      break;
    case StmtKind::kOutput:
      emit(to_text(runtime_, eval(*stmt.expr)));
      break;
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt);
    case StmtKind::kSet:
      assign(stmt.target, eval(*stmt.expr));
      break;
    case StmtKind::kSetBlock: {
      const Value text = runtime_.string(captured_body(stmt.body, runtime_.scope(scope_)));
      assign(stmt.target, apply_filters(stmt, text));
      break;
    }
    case StmtKind::kFilter: {
      const Value text = runtime_.string(captured_body(stmt.body, runtime_.scope(scope_)));
      emit(to_text(runtime_, apply_filters(stmt, text)));
      break;
    }
    case StmtKind::kMacro: {
      for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
      const Callable macro{Callable::Kind::kMacro, stmt.text, {}, &stmt, scope_};
      scope_->set(stmt.text, Value::of(runtime_.callable(macro)));
      break;
    }
    case StmtKind::kScope: {
      const Swapped scope(scope_, runtime_.scope(scope_));
      return run_body(stmt.body);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    if (condition == nullptr || truth(eval(*condition))) return run_body(body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt) {
  Loop* loop = runtime_.loop();
  loop->items = iterate(runtime_, eval(*stmt.expr));
  Scope* const outer = scope_;
  Scope* inner = runtime_.scope(outer);
  const Swapped scope(scope_, inner);
  const auto renew = [&] {  // every round has its own variables
    if (inner->captured) inner = runtime_.scope(outer);
    inner->variables.clear();
    scope_ = inner;
  };
  if (stmt.condition != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : loop->items) {
      renew();
      assign(stmt.target, item);
      if (truth(eval(*stmt.condition))) kept.push_back(item);
    }
    loop->items = std::move(kept);
  }
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    renew();
    scope_->set("loop", Value::of(loop));
    assign(stmt.target, loop->items[loop->index]);
    if (run_body(stmt.body) == Flow::kBreak) break;
  }
  if (!loop->items.empty()) return Flow::kNext;
  renew();
  return run_body(stmt.otherwise);
}

std::string Interpreter::captured_body(const Body& body, Scope* scope) {
  std::string text;
  const Swapped<std::string*> to(out_, &text);
  const Swapped inside(scope_, scope);
  run_body(body);
  return text;
}

Value Interpreter::apply_filters(const Stmt& stmt, Value value) {
  for (const Expr* expr : stmt.filters) value = filter(expr->text, value, eval_arguments(*expr));
  return value;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const std::vector<Value> items = iterate(runtime_, value);
    if (items.size() != target.parts.size()) {
      fail(fmt::format("cannot unpack {} values into {}", items.size(), target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) {
    runtime_.work(scope_->variables.size() / 8);
    scope_->set(target.name, value);
    return;
  }
  const Value space = lookup(target.name);
  if (!space.is(Type::kNamespace)) fail(fmt::format("cannot assign to an attribute of a '{}'", type_name(space)));
  if (target.attribute.starts_with('_')) fail("attributes of a namespace cannot begin with '_'");
  space.space->attributes[target.attribute] = value;
}

Value Interpreter::lookup(std::string_view name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    runtime_.work(scope->variables.size() / 8);
    if (const Value* value = scope->find_here(name)) return *value;
  }
  if (is_global(name)) return Value::of(runtime_.callable({Callable::Kind::kGlobal, name}));
  return Value::undefined(name);
}

Value Interpreter::eval(const Expr& expr) {
  runtime_.work(1);
  const Runtime::Deeper deeper(runtime_);
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.value;
    case ExprKind::kName:
      return lookup(expr.text);
    case ExprKind::kAttribute:
      return attribute(eval(*expr.parts[0]), expr.text);
    case ExprKind::kCall: {
      const Value callee = eval(*expr.parts[0]);
      return call(callee, eval_arguments(expr));
    }
    case ExprKind::kFilter: {
      const Value value = eval(*expr.parts[0]);
      return filter(expr.text, value, eval_arguments(expr));
    }
    case ExprKind::kTest: {
      const Value value = eval(*expr.parts[0]);
      return Value::of(test(expr.text, value, eval_arguments(expr)));
    }
    case ExprKind::kConditional:
      if (truth(eval(*expr.parts[1]))) return eval(*expr.parts[0]);
      return expr.parts[2] == nullptr ? Value::undefined("the condition was false and there is no else")
                                      : eval(*expr.parts[2]);
    case ExprKind::kSlice:
      return eval_slice(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      return eval_container(expr);
    default:
      return eval_operator(expr);
  }
}

Value Interpreter::eval_operator(const Expr& expr) {
  const Value left = eval(*expr.parts[0]);
  switch (expr.kind) {
    case ExprKind::kItem:
      return item(left, eval(*expr.parts[1]));
    case ExprKind::kNot:
      return Value::of(!truth(left));
    case ExprKind::kAnd:
      return truth(left) ? eval(*expr.parts[1]) : left;
    case ExprKind::kOr:
      return truth(left) ? left : eval(*expr.parts[1]);
    case ExprKind::kNegative:
      if (left.is(Type::kFloat)) return Value::of(-left.real);  // 0 - 0.0 would lose the sign
      return arithmetic(runtime_, "-", Value::of(Int{0}), left);
    case ExprKind::kPositive:
      return arithmetic(runtime_, "+", Value::of(Int{0}), left);
    default:
      return arithmetic(runtime_, expr.text, left, eval(*expr.parts[1]));
  }
}

Value Interpreter::eval_container(const Expr& expr) {
  if (expr.kind == ExprKind::kDict) {
    Dict* dict = runtime_.dict();
    for (size_t i = 0; i < expr.parts.size(); i += 2) {
      const Value key = eval(*expr.parts[i]);
      dict->set(runtime_, key, eval(*expr.parts[i + 1]));
    }
    return Value::of(dict);
  }
  std::vector<Value> items;
  items.reserve(expr.parts.size());
  for (const Expr* part : expr.parts) items.push_back(eval(*part));
  return runtime_.list(std::move(items), expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Interpreter::eval_concat(const Expr& expr) {
  std::vector<std::string_view> parts;
  size_t bytes = 0;
  for (const Expr* part : expr.parts) {
    parts.push_back(to_text(runtime_, eval(*part)));
    bytes += parts.back().size();
  }
  runtime_.reserve_bytes(bytes);
  std::string text;
  text.reserve(bytes);
  for (const std::string_view part : parts) text += part;
  return runtime_.string(std::move(text));
}

bool Interpreter::compare_one(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(runtime_, a, b);
  if (op == "!=") return !equal(runtime_, a, b);
  if (op == "in") return contains(runtime_, b, a);
  if (op == "not in") return !contains(runtime_, b, a);
  const bool nan = (a.is(Type::kFloat) && a.real != a.real) || (b.is(Type::kFloat) && b.real != b.real);
  const int order = compare(runtime_, a, b);
  if (nan) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.parts[0]);
  for (size_t i = 0; i < expr.texts.size(); ++i) {
    const Value right = eval(*expr.parts[i + 1]);
    if (!compare_one(expr.texts[i], left, right)) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Value Interpreter::eval_slice(const Expr& expr) {
  const Value value = eval(*expr.parts[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = expr.parts[i + 1] == nullptr ? Value::none() : eval(*expr.parts[i + 1]);
  if (value.is(Type::kString)) {
    runtime_.scan(value.text.size());
    const std::u32string all = to_code_points(value.text);
    std::u32string chosen;
    for (const size_t i : slice_indices(runtime_, bounds, static_cast<Int>(all.size()))) chosen += all[i];
    return runtime_.string(to_utf8(chosen));
  }
  if (!value.is(Type::kList) || value.list->kind > ListKind::kTuple) {
    if (value.is(Type::kUndefined)) fail_undefined(value);
    return Value::undefined("a slice of what cannot be sliced");
  }
  std::vector<Value> chosen;
  const auto& items = value.list->items;
  for (const size_t i : slice_indices(runtime_, bounds, static_cast<Int>(items.size()))) chosen.push_back(items[i]);
  return runtime_.list(std::move(chosen), value.list->kind);
}

Args Interpreter::eval_arguments(const Expr& expr) {
  Args args;
  for (size_t i = 1; i < expr.parts.size(); ++i) args.positional.push_back(eval(*expr.parts[i]));
  for (const auto& [name, value] : expr.named) args.named.emplace_back(name, eval(*value));
  return args;
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is(Type::kLoop)) return loop_attribute(runtime_, value.loop, name);
  if (has_method(value, name)) {
    return Value::of(runtime_.callable({Callable::Kind::kMethod, name, value}));
  }
  if (value.is(Type::kNamespace)) {
    const auto it = value.space->attributes.find(name);
    return it == value.space->attributes.end() ? Value::undefined(name) : it->second;
  }
  if (value.is(Type::kDict)) {
    const Value* entry = value.dict->find(runtime_, Value::of(name));
    if (entry != nullptr) return *entry;
  }
  return Value::undefined(name);
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is(Type::kUndefined)) fail_undefined(value);
  if (value.is(Type::kDict)) {
    if (const Value* entry = value.dict->find(runtime_, key)) return *entry;
  }
  if (key.is(Type::kString)) return attribute(value, key.text);
  if (key.is_integral()) {
    Int i = key.as_int();
    if (value.is(Type::kList) && value.list->kind <= ListKind::kTuple) {
      const auto size = static_cast<Int>(value.list->items.size());
      if (i < 0) i += size;
      if (i >= 0 && i < size) return value.list->items[static_cast<size_t>(i)];
    }
    if (value.is(Type::kString)) {
      const Int size = length(runtime_, value);
      if (i < 0) i += size;
      if (i >= 0 && i < size) return iterate(runtime_, value)[static_cast<size_t>(i)];
    }
    return Value::undefined("an element that is not there");
  }
  return Value::undefined("an element that is not there");
}

Value Interpreter::call(const Value& callee, const Args& args) {
  if (callee.is(Type::kUndefined)) fail_undefined(callee);
  if (!callee.is(Type::kCallable)) fail(fmt::format("'{}' object is not callable", type_name(callee)));
  const Callable& callable = *callee.callable;
  switch (callable.kind) {
    case Callable::Kind::kGlobal:
      return call_global(*this, callable.name, args);
    case Callable::Kind::kMethod:
      return call_method(*this, callable.self, callable.name, args);
    case Callable::Kind::kMacro:
      break;
  }
  return call_macro(callable, args);
}

Value Interpreter::call_macro(const Callable& callable, const Args& args) {
  const Stmt& macro = *callable.macro;
  const auto& parameters = macro.parameters;
  if (args.positional.size() > parameters.size()) {
    fail(fmt::format("macro '{}' takes at most {} arguments", macro.text, parameters.size()));
  }
  for (const auto& [name, value] : args.named) {
    const bool known =
        std::any_of(parameters.begin() + static_cast<ptrdiff_t>(args.positional.size()), parameters.end(),
                    [&, wanted = name](const auto& parameter) { return parameter.first == wanted; });
    if (!known) fail(fmt::format("macro '{}' takes no argument '{}' here", macro.text, name));
  }
  Scope* inner = runtime_.scope(callable.scope);
  const Swapped scope(scope_, inner);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, default_value] = parameters[i];
    const auto named =
        std::find_if(args.named.begin(), args.named.end(),
                     [&, wanted = std::string_view(name)](const auto& arg) { return arg.first == wanted; });
    if (i < args.positional.size()) {
      inner->set(name, args.positional[i]);
    } else if (named != args.named.end()) {
      inner->set(name, named->second);
    } else {
      inner->set(name, default_value == nullptr ? Value::undefined(name) : eval(*default_value));
    }
  }
  return runtime_.string(captured_body(macro.body, inner));
}

}  // namespace assay::text::jinja
