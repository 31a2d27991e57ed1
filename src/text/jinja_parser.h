// Template source to its tree.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja_ast.h"

namespace assay::text::jinja {

// Nesting of brackets, operators and blocks that a template may have.
constexpr int kMaxNesting = 400;

// Throws Fault: a syntax error, or a statement that chat templates do not use (include, import, extends, block, call).
std::unique_ptr<Template> parse(std::string_view source);

}  // namespace assay::text::jinja
