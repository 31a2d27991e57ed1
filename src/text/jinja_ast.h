// The parsed template. Nodes belong to the Template and point to each other freely.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace assay::text::jinja {

enum class ExprKind : uint8_t {
  kConstant,   // value
  kName,       // text
  kList,       // parts
  kTuple,      // parts
  kDict,       // parts: key, value, key, value, ...
  kAttribute,  // parts[0].text
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; absent ones null
  kCall,       // parts[0](parts[1..], named)
  kFilter,     // parts[0] | text(parts[1..], named)
  kTest,       // parts[0] is text(parts[1..], named)
  kNot,        // parts[0]
  kAnd,        // parts[0], parts[1]
  kOr,
  kNegative,
  kPositive,
  kArithmetic,   // parts[0] text parts[1]
  kConcat,       // parts
  kCompare,      // parts[0] texts[0] parts[1] texts[1] parts[2] ...
  kConditional,  // parts[0] if parts[1] else parts[2]; the last may be null
};

struct Expr {
  ExprKind kind;
  int line = 0;
  Value value;
  std::string text;
  std::vector<std::string> texts;
  std::vector<const Expr*> parts;
  std::vector<std::pair<std::string, const Expr*>> named;
};

enum class StmtKind : uint8_t {
  kText,      // text
  kOutput,    // expr
  kIf,        // branches: condition (null for else) and body
  kFor,       // target, expr, condition (filter, may be null), body, otherwise
  kSet,       // target, expr
  kSetBlock,  // target, body, filters
  kFilter,    // filters, body
  kMacro,     // text (name), parameters, body
  kScope,     // body, in a scope of its own
  kBreak,
  kContinue,
};

// What is assigned to: a name, an attribute of a namespace, or a tuple of these.
struct Target {
  std::string name;
  std::string attribute;  // of the namespace `name`; empty: the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

using Body = std::vector<const Stmt*>;

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string text;
  Target target;
  const Expr* expr = nullptr;
  const Expr* condition = nullptr;
  Body body;
  Body otherwise;
  std::vector<std::pair<const Expr*, Body>> branches;
  std::vector<std::pair<std::string, const Expr*>> parameters;  // name, default (may be null)
  std::vector<const Expr*> filters;                             // kFilter nodes whose parts[0] is null
};

struct Template {
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  Body body;
};

}  // namespace assay::text::jinja
