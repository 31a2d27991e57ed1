// Tests: what may stand behind "is".

#include <fmt/format.h>

#include "text/jinja_builtins.h"

namespace assay::text::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Args&);

bool is_defined(Interpreter&, const Value& v, const Args&) { return !v.is(Type::kUndefined); }
bool is_undefined(Interpreter&, const Value& v, const Args&) { return v.is(Type::kUndefined); }
bool is_none(Interpreter&, const Value& v, const Args&) { return v.is(Type::kNone); }
bool is_true(Interpreter&, const Value& v, const Args&) { return v.is(Type::kBool) && v.boolean; }
bool is_false(Interpreter&, const Value& v, const Args&) { return v.is(Type::kBool) && !v.boolean; }
bool is_boolean(Interpreter&, const Value& v, const Args&) { return v.is(Type::kBool); }
bool is_integer(Interpreter&, const Value& v, const Args&) { return v.is(Type::kInt); }
bool is_float(Interpreter&, const Value& v, const Args&) { return v.is(Type::kFloat); }
bool is_number(Interpreter&, const Value& v, const Args&) { return v.is_number(); }
bool is_string(Interpreter&, const Value& v, const Args&) { return v.is(Type::kString); }
bool is_mapping(Interpreter&, const Value& v, const Args&) { return v.is(Type::kDict); }

// Python's undefined object can be walked, indexed and called as far as these tests look.
bool is_iterable(Interpreter&, const Value& v, const Args&) {
  return v.is(Type::kString) || v.is(Type::kList) || v.is(Type::kDict) || v.is(Type::kUndefined);
}
bool is_sequence(Interpreter&, const Value& v, const Args&) {
  if (v.is(Type::kList)) return v.list->kind <= ListKind::kTuple;
  return v.is(Type::kString) || v.is(Type::kDict) || v.is(Type::kUndefined);
}
bool is_callable(Interpreter&, const Value& v, const Args&) { return v.is(Type::kCallable) || v.is(Type::kUndefined); }

bool leaves(Interpreter& in, const Value& value, const Value& divisor, Int rest) {
  return equal(in.runtime(), arithmetic(in.runtime(), "%", value, divisor), Value::of(rest));
}
bool is_odd(Interpreter& in, const Value& v, const Args&) { return leaves(in, v, Value::of(Int{2}), 1); }
bool is_even(Interpreter& in, const Value& v, const Args&) { return leaves(in, v, Value::of(Int{2}), 0); }
bool is_divisible(Interpreter& in, const Value& v, const Args& args) {
  return leaves(in, v, Bound(args, {"num"}).need(0), 0);
}

bool is_equal(Interpreter& in, const Value& v, const Args& args) {
  return equal(in.runtime(), v, Bound(args, {"other"}).need(0));
}
bool is_unequal(Interpreter& in, const Value& v, const Args& args) { return !is_equal(in, v, args); }
int order(Interpreter& in, const Value& v, const Args& args) {
  return compare(in.runtime(), v, Bound(args, {"other"}).need(0));
}
bool is_less(Interpreter& in, const Value& v, const Args& args) { return order(in, v, args) < 0; }
bool is_at_most(Interpreter& in, const Value& v, const Args& args) { return order(in, v, args) <= 0; }
bool is_greater(Interpreter& in, const Value& v, const Args& args) { return order(in, v, args) > 0; }
bool is_at_least(Interpreter& in, const Value& v, const Args& args) { return order(in, v, args) >= 0; }
bool is_in(Interpreter& in, const Value& v, const Args& args) {
  return contains(in.runtime(), Bound(args, {"seq"}).need(0), v);
}

// Identity: of equal type and, for containers, the same object.
bool is_same(Interpreter& in, const Value& v, const Args& args) {
  const Value& other = Bound(args, {"other"}).need(0);
  if (v.type != other.type) return false;
  if (v.is(Type::kList)) return v.list == other.list;
  if (v.is(Type::kDict)) return v.dict == other.dict;
  return equal(in.runtime(), v, other);
}

template <bool upper>
bool is_cased(Interpreter& in, const Value& v, const Args&) {
  const Value text = Value::of(to_text(in.runtime(), v));
  return truth(call_string_method(in.runtime(), text.text, upper ? "isupper" : "islower", {}));
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> table = {
      {"!=", is_unequal},
      {"<", is_less},
      {"<=", is_at_most},
      {"==", is_equal},
      {">", is_greater},
      {">=", is_at_least},
      {"boolean", is_boolean},
      {"callable", is_callable},
      {"defined", is_defined},
      {"divisibleby", is_divisible},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"even", is_even},
      {"false", is_false},
      {"float", is_float},
      {"ge", is_at_least},
      {"greaterthan", is_greater},
      {"gt", is_greater},
      {"in", is_in},
      {"integer", is_integer},
      {"iterable", is_iterable},
      {"le", is_at_most},
      {"lessthan", is_less},
      {"lower", is_cased<false>},
      {"lt", is_less},
      {"mapping", is_mapping},
      {"ne", is_unequal},
      {"none", is_none},
      {"number", is_number},
      {"odd", is_odd},
      {"sameas", is_same},
      {"sequence", is_sequence},
      {"string", is_string},
      {"true", is_true},
      {"undefined", is_undefined},
      {"upper", is_cased<true>},
  };
  return table;
}

}  // namespace

bool Interpreter::test(std::string_view name, const Value& value, const Args& args) {
  runtime_.work(1);
  const auto it = tests().find(name);
  if (it == tests().end()) fail(fmt::format("no test named '{}'", name));
  return it->second(*this, value, args);
}

}  // namespace assay::text::jinja
