// Runs a parsed template.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja_ast.h"

namespace assay::text::jinja {

// One rendering. Throws Fault: from the template's raise_exception, for a use of an undefined value or a value of the
// wrong type, for unknown filters, tests and functions, and beyond the Runtime's bounds.
class Interpreter {
 public:
  // variables: names of the context.
  Interpreter(Runtime& runtime, Scope* variables) : runtime_(runtime), scope_(variables) {}

  std::string run(const Template& tree);

  Runtime& runtime() { return runtime_; }
  Value call(const Value& callee, const Args& args);
  Value filter(std::string_view name, const Value& value, const Args& args);
  bool test(std::string_view name, const Value& value, const Args& args);

  // value.name and value[key], as jinja2 looks them up: methods before entries, or the other way round.
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Flow run_body(const Body& body);
  Flow run_statement(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  std::string captured_body(const Body& body, Scope* scope);
  Value apply_filters(const Stmt& stmt, Value value);
  void assign(const Target& target, const Value& value);
  void emit(std::string_view text);

  Value eval(const Expr& expr);
  Value eval_operator(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_container(const Expr& expr);
  Args eval_arguments(const Expr& expr);
  Value lookup(std::string_view name);
  Value call_macro(const Callable& callable, const Args& args);
  bool compare_one(const std::string& op, const Value& a, const Value& b);

  Runtime& runtime_;
  Scope* scope_;
  std::string* out_ = nullptr;
};

}  // namespace assay::text::jinja
