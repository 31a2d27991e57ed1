#include "text/jinja_parser.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>

#include <fmt/format.h>

#include "text/jinja_lexer.h"

namespace assay::text::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : lexemes_(lex(source)), tree_(std::make_unique<Template>()) {}

  std::unique_ptr<Template> run() {
    tree_->body = parse_body({});
    return std::move(tree_);
  }

 private:
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxNesting) parser.fail_here("nested too deeply");
    }
    ~Nesting() { --parser.nesting_; }
    Parser& parser;
  };

  [[noreturn]] void fail_here(std::string message) const { throw Fault{std::move(message), now().line}; }

  const Lexeme& now() const { return lexemes_[at_]; }
  const Lexeme& peek() const { return lexemes_[std::min(at_ + 1, lexemes_.size() - 1)]; }
  bool at(Token token) const { return now().token == token; }
  bool at_operator(std::string_view text) const { return at(Token::kOperator) && now().text == text; }
  bool at_name(std::string_view text) const { return at(Token::kName) && now().text == text; }
  Lexeme take() { return lexemes_[at(Token::kEnd) ? at_ : at_++]; }

  bool skip_operator(std::string_view text) {
    if (!at_operator(text)) return false;
    ++at_;
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!at_name(text)) return false;
    ++at_;
    return true;
  }
  std::string described() const {
    switch (now().token) {
      case Token::kEnd:
        return "the end of the template";
      case Token::kVarEnd:
      case Token::kBlockEnd:
        return "the end of the tag";
      default:
        return fmt::format("'{}'", now().text);
    }
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) fail_here(fmt::format("expected '{}', found {}", text, described()));
  }
  void expect(Token token, std::string_view what) {
    if (!at(token)) fail_here(fmt::format("expected {}, found {}", what, described()));
    ++at_;
  }
  std::string expect_name() {
    if (!at(Token::kName)) fail_here(fmt::format("expected a name, found {}", described()));
    return take().text;
  }

  Expr* expr(ExprKind kind, std::vector<const Expr*> parts = {}, std::string text = "") {
    Expr& made = tree_->exprs.emplace_back();
    made.kind = kind;
    made.line = now().line;
    made.parts = std::move(parts);
    made.text = std::move(text);
    return &made;
  }
  Expr* constant(const Value& value) {
    Expr* made = expr(ExprKind::kConstant);
    made->value = value;
    return made;
  }
  Stmt* stmt(StmtKind kind) {
    Stmt& made = tree_->stmts.emplace_back();
    made.kind = kind;
    made.line = now().line;
    return &made;
  }

  // Statements up to a block tag named in `ends`, whose name is left as the next lexeme; with none, to the end.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Body body;
    while (!at(Token::kEnd)) {
      if (at(Token::kData)) {
        Stmt* text = stmt(StmtKind::kText);
        text->text = take().text;
        body.push_back(text);
      } else if (at(Token::kVarBegin)) {
        Stmt* output = stmt(StmtKind::kOutput);
        ++at_;
        output->expr = parse_tuple();
        expect(Token::kVarEnd, "'}}'");
        body.push_back(output);
      } else {
        expect(Token::kBlockBegin, "a tag");
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); })) return body;
        body.push_back(parse_statement());
      }
    }
    if (ends.size() > 0) fail_here(fmt::format("the template ends where '{}' is expected", *(ends.end() - 1)));
    return body;
  }

  void end_of_tag() { expect(Token::kBlockEnd, "'%}'"); }

  Body parse_block(std::string_view end) {
    end_of_tag();
    Body body = parse_body({end});
    ++at_;
    end_of_tag();
    return body;
  }

  const Stmt* parse_statement() {
    const std::string name = expect_name();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "filter") {
      Stmt* made = stmt(StmtKind::kFilter);
      made->filters = parse_filters(true);
      made->body = parse_block("endfilter");
      return made;
    }
    if (name == "generation") {
      Stmt* made = stmt(StmtKind::kScope);
      made->body = parse_block("endgeneration");
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_here(fmt::format("'{}' outside of a loop", name));
      Stmt* made = stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      end_of_tag();
      return made;
    }
    fail_here(fmt::format("unknown statement '{}'", name));
  }

  const Stmt* parse_if() {
    Stmt* made = stmt(StmtKind::kIf);
    const Expr* condition = parse_tuple();
    while (true) {
      end_of_tag();
      Body body = parse_body({"elif", "else", "endif"});
      made->branches.emplace_back(condition, std::move(body));
      const std::string tag = take().text;
      if (tag == "endif") break;
      if (tag == "else") {
        made->branches.emplace_back(nullptr, parse_block("endif"));
        return made;
      }
      condition = parse_tuple();
    }
    end_of_tag();
    return made;
  }

  const Stmt* parse_for() {
    Stmt* made = stmt(StmtKind::kFor);
    made->target = parse_target(false);
    if (!skip_name("in")) fail_here(fmt::format("expected 'in', found {}", described()));
    made->expr = parse_tuple(false);
    if (skip_name("if")) made->condition = parse_expression();
    if (at_name("recursive")) fail_here("recursive loops are not supported");
    end_of_tag();
    ++loops_;
    made->body = parse_body({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      made->otherwise = parse_block("endfor");
    } else {
      end_of_tag();
    }
    return made;
  }

  const Stmt* parse_set() {
    Stmt* made = stmt(StmtKind::kSet);
    made->target = parse_target(true);
    if (skip_operator("=")) {
      made->expr = parse_tuple();
      end_of_tag();
      return made;
    }
    made->kind = StmtKind::kSetBlock;
    made->filters = parse_filters(false);
    made->body = parse_block("endset");
    return made;
  }

  // "f | g(x)" (first_bare) or "| f | g(x)".
  std::vector<const Expr*> parse_filters(bool first_bare) {
    std::vector<const Expr*> filters;
    for (bool bare = first_bare; bare || skip_operator("|"); bare = false) filters.push_back(parse_filter(nullptr));
    return filters;
  }

  const Stmt* parse_macro() {
    Stmt* made = stmt(StmtKind::kMacro);
    made->text = expect_name();
    expect_operator("(");
    while (!at_operator(")")) {
      std::string parameter = expect_name();
      const Expr* default_value = nullptr;
      if (skip_operator("=")) {
        default_value = parse_expression();
      } else if (!made->parameters.empty() && made->parameters.back().second != nullptr) {
        fail_here("a parameter without default behind one with");
      }
      made->parameters.emplace_back(std::move(parameter), default_value);
      if (!skip_operator(",")) break;
    }
    expect_operator(")");
    const int outer_loops = std::exchange(loops_, 0);
    made->body = parse_block("endmacro");
    loops_ = outer_loops;
    return made;
  }

  Target parse_one_target(bool with_attribute) {
    const Nesting nesting(*this);
    if (skip_operator("(")) {
      Target inner = parse_target(with_attribute);
      expect_operator(")");
      return inner;
    }
    Target target;
    target.name = expect_name();
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == reserved) fail_here(fmt::format("cannot assign to '{}'", target.name));
    }
    if (with_attribute && skip_operator(".")) target.attribute = expect_name();
    return target;
  }

  Target parse_target(bool with_attribute) {
    Target first = parse_one_target(with_attribute);
    if (!at_operator(",")) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (!at(Token::kName) && !at_operator("(")) break;
      if (at_name("in")) break;
      tuple.parts.push_back(parse_one_target(with_attribute));
    }
    return tuple;
  }

  bool tuple_ends() const {
    return at(Token::kVarEnd) || at(Token::kBlockEnd) || at_operator(")") || at_name("recursive");
  }

  // One expression, or several with commas. Behind "in" of a for loop an "if" is the loop's filter, not a condition.
  const Expr* parse_tuple(bool conditional = true) {
    const auto one = [&] { return conditional ? parse_expression() : parse_or(); };
    std::vector<const Expr*> parts;
    bool is_tuple = false;
    while (!tuple_ends()) {
      parts.push_back(one());
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (parts.empty()) fail_here(fmt::format("expected an expression, found {}", described()));
    return is_tuple ? expr(ExprKind::kTuple, std::move(parts)) : parts[0];
  }

  const Expr* parse_expression() {
    const Nesting nesting(*this);
    const Expr* value = parse_or();
    while (skip_name("if")) {
      const Expr* condition = parse_or();
      const Expr* otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = expr(ExprKind::kConditional, {value, condition, otherwise});
    }
    return value;
  }

  const Expr* parse_or() {
    const Expr* left = parse_and();
    while (skip_name("or")) left = expr(ExprKind::kOr, {left, parse_and()});
    return left;
  }

  const Expr* parse_and() {
    const Expr* left = parse_not();
    while (skip_name("and")) left = expr(ExprKind::kAnd, {left, parse_not()});
    return left;
  }

  const Expr* parse_not() {
    const Nesting nesting(*this);
    if (skip_name("not")) return expr(ExprKind::kNot, {parse_not()});
    return parse_compare();
  }

  const Expr* parse_compare() {
    std::vector<const Expr*> parts = {parse_sum()};
    std::vector<std::string> operators;
    while (true) {
      if (at(Token::kOperator) && (now().text == "==" || now().text == "!=" || now().text == "<" ||
                                   now().text == "<=" || now().text == ">" || now().text == ">=")) {
        operators.push_back(take().text);
      } else if (skip_name("in")) {
        operators.emplace_back("in");
      } else if (at_name("not") && peek().token == Token::kName && peek().text == "in") {
        at_ += 2;
        operators.emplace_back("not in");
      } else {
        break;
      }
      parts.push_back(parse_sum());
    }
    if (operators.empty()) return parts[0];
    Expr* made = expr(ExprKind::kCompare, std::move(parts));
    made->texts = std::move(operators);
    return made;
  }

  const Expr* parse_sum() {
    const Expr* left = parse_concat();
    while (at_operator("+") || at_operator("-")) {
      std::string op = take().text;
      left = expr(ExprKind::kArithmetic, {left, parse_concat()}, std::move(op));
    }
    return left;
  }

  const Expr* parse_concat() {
    std::vector<const Expr*> parts = {parse_product()};
    while (skip_operator("~")) parts.push_back(parse_product());
    return parts.size() == 1 ? parts[0] : expr(ExprKind::kConcat, std::move(parts));
  }

  const Expr* parse_product() {
    const Expr* left = parse_power();
    while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
      std::string op = take().text;
      left = expr(ExprKind::kArithmetic, {left, parse_power()}, std::move(op));
    }
    return left;
  }

  const Expr* parse_power() {
    const Expr* left = parse_unary(true);
    while (skip_operator("**")) left = expr(ExprKind::kArithmetic, {left, parse_unary(true)}, "**");
    return left;
  }

  // A sign binds tighter than filters and tests: -x|abs is (-x)|abs.
  const Expr* parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const Expr* value = nullptr;
    if (skip_operator("-")) {
      value = expr(ExprKind::kNegative, {parse_unary(false)});
    } else if (skip_operator("+")) {
      value = expr(ExprKind::kPositive, {parse_unary(false)});
    } else {
      value = parse_primary();
    }
    value = parse_postfix(value);
    return with_filters ? parse_filters_and_tests(value) : value;
  }

  const Expr* parse_primary() {
    if (at(Token::kOperator)) return parse_bracketed();
    const Lexeme lexeme = take();
    switch (lexeme.token) {
      case Token::kName: {
        const std::string& name = lexeme.text;
        if (name == "true" || name == "True") return constant(Value::of(true));
        if (name == "false" || name == "False") return constant(Value::of(false));
        if (name == "none" || name == "None") return constant(Value::none());
        return expr(ExprKind::kName, {}, name);
      }
      case Token::kString: {
        Expr* made = expr(ExprKind::kConstant, {}, lexeme.text);
        while (at(Token::kString)) made->text += take().text;
        made->value = Value::of(std::string_view(made->text));
        return made;
      }
      case Token::kInt:
        return constant(Value::of(parse_int(lexeme.text)));
      case Token::kFloat:
        return constant(Value::of(std::strtod(lexeme.text.c_str(), nullptr)));
      default:
        break;
    }
    if (lexeme.token != Token::kEnd) --at_;
    fail_here(fmt::format("expected an expression, found {}", described()));
  }

  Int parse_int(const std::string& text) const {
    const char kind = text.size() > 1 ? static_cast<char>(text[1] | 32) : ' ';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    const std::string digits = base == 10 ? text : text.substr(2);
    char* end = nullptr;
    errno = 0;
    const unsigned long long value = std::strtoull(digits.c_str(), &end, base);
    if (errno != 0 || digits.empty() || *end != '\0') fail_here(fmt::format("not a number: '{}'", text));
    return static_cast<Int>(value);
  }

  const Expr* parse_bracketed() {
    const Nesting nesting(*this);
    if (skip_operator("(")) {
      if (skip_operator(")")) return expr(ExprKind::kTuple);
      const Expr* value = parse_tuple();
      expect_operator(")");
      return value;
    }
    if (skip_operator("[")) {
      std::vector<const Expr*> parts;
      while (!at_operator("]")) {
        parts.push_back(parse_expression());
        if (!skip_operator(",")) break;
      }
      expect_operator("]");
      return expr(ExprKind::kList, std::move(parts));
    }
    if (skip_operator("{")) {
      std::vector<const Expr*> parts;
      while (!at_operator("}")) {
        parts.push_back(parse_expression());
        expect_operator(":");
        parts.push_back(parse_expression());
        if (!skip_operator(",")) break;
      }
      expect_operator("}");
      return expr(ExprKind::kDict, std::move(parts));
    }
    fail_here(fmt::format("expected an expression, found {}", described()));
  }

  const Expr* parse_postfix(const Expr* value) {
    while (true) {
      if (skip_operator(".")) {
        if (at(Token::kInt)) {
          const Expr* index = constant(Value::of(parse_int(take().text)));
          value = expr(ExprKind::kItem, {value, index});
        } else {
          value = expr(ExprKind::kAttribute, {value}, expect_name());
        }
      } else if (skip_operator("[")) {
        value = parse_subscript(value);
      } else if (at_operator("(")) {
        Expr* call = expr(ExprKind::kCall, {value});
        parse_arguments(*call);
        value = call;
      } else {
        return value;
      }
    }
  }

  const Expr* parse_subscript(const Expr* value) {
    std::vector<const Expr*> bounds = {value, nullptr, nullptr, nullptr};
    if (!at_operator(":")) bounds[1] = parse_expression();
    if (!at_operator(":")) {
      expect_operator("]");
      return expr(ExprKind::kItem, {value, bounds[1]});
    }
    for (size_t i = 2; i < 4 && skip_operator(":"); ++i) {
      if (!at_operator(":") && !at_operator("]")) bounds[i] = parse_expression();
    }
    expect_operator("]");
    return expr(ExprKind::kSlice, std::move(bounds));
  }

  void parse_arguments(Expr& call) {
    expect_operator("(");
    while (!at_operator(")")) {
      if (at(Token::kName) && peek().token == Token::kOperator && peek().text == "=") {
        std::string name = take().text;
        ++at_;
        call.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!call.named.empty()) fail_here("a positional argument behind a named one");
        call.parts.push_back(parse_expression());
      }
      if (!skip_operator(",")) break;
    }
    expect_operator(")");
  }

  const Expr* parse_filter(const Expr* value) {
    Expr* filter = expr(ExprKind::kFilter, {value}, expect_name());
    if (at_operator("(")) parse_arguments(*filter);
    return filter;
  }

  const Expr* parse_filters_and_tests(const Expr* value) {
    while (true) {
      if (skip_operator("|")) {
        value = parse_filter(value);
      } else if (skip_name("is")) {
        value = parse_test(value);
      } else if (at_operator("(")) {
        Expr* call = expr(ExprKind::kCall, {value});
        parse_arguments(*call);
        value = call;
      } else {
        return value;
      }
    }
  }

  const Expr* parse_test(const Expr* value) {
    const bool negated = skip_name("not");
    Expr* test = expr(ExprKind::kTest, {value}, expect_name());
    const bool argument =
        at(Token::kString) || at(Token::kInt) || at(Token::kFloat) || at_operator("[") || at_operator("{") ||
        (at(Token::kName) && now().text != "else" && now().text != "or" && now().text != "and" && now().text != "if");
    if (at_operator("(")) {
      parse_arguments(*test);
    } else if (argument && !at_name("in") && !at_name("not")) {
      if (at_name("is")) fail_here("tests cannot be chained with 'is'");
      test->parts.push_back(parse_postfix(parse_primary()));
    }
    return negated ? expr(ExprKind::kNot, {test}) : test;
  }

  std::vector<Lexeme> lexemes_;
  std::unique_ptr<Template> tree_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

std::unique_ptr<Template> parse(std::string_view source) { return Parser(source).run(); }

}  // namespace assay::text::jinja
