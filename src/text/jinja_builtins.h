// Functions, methods, filters, tests and operators of the language.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

#include "text/jinja_interpreter.h"
#include "text/jinja_value.h"

namespace assay::text::jinja {

bool is_global(std::string_view name);
Value call_global(Interpreter& interpreter, std::string_view name, const Args& args);

bool has_method(const Value& value, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& self, std::string_view name, const Args& args);

Value call_string_method(Runtime& runtime, std::string_view self, std::string_view name, const Args& args);

// a op b for + - * / // % **.
Value arithmetic(Runtime& runtime, std::string_view op, const Value& a, const Value& b);

[[noreturn]] void fail_undefined(const Value& value);

// Arguments by position and by name. Fault for too many, unknown or doubled ones.
class Bound {
 public:
  static constexpr size_t kMax = 6;
  Bound(const Args& args, std::initializer_list<std::string_view> names);

  // Null if it was not given.
  const Value* operator[](size_t i) const { return values_[i]; }
  const Value& need(size_t i) const;
  bool flag(size_t i, bool otherwise = false) const { return values_[i] == nullptr ? otherwise : truth(*values_[i]); }
  // An integer; `otherwise` if absent or none.
  Int integer(size_t i, Int otherwise) const;

 private:
  std::array<const Value*, kMax> values_{};
};

// Methods and filters of text that both need.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string_view strip(std::string_view text, const Value* characters);
std::string replace_text(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                         Int count);
std::vector<std::string_view> split_lines(std::string_view text);

}  // namespace assay::text::jinja
