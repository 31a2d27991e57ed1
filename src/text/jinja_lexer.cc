#include "text/jinja_lexer.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "text/jinja_value.h"
#include "text/utf8.h"

namespace assay::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0; }

std::string unify_line_ends(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(unify_line_ends(source)), text_(source_) {}

  std::vector<Lexeme> run() {
    while (at_ < text_.size()) lex_data();
    add(Token::kEnd, "");
    return std::move(lexemes_);
  }

 private:
  [[noreturn]] void fail_here(std::string message) const { throw Fault{std::move(message), line_}; }

  void add(Token token, std::string text) { lexemes_.push_back({token, std::move(text), line_}); }

  void add_data(std::string_view text) {
    if (!text.empty()) add(Token::kData, std::string(text));
  }

  bool follows(std::string_view wanted, size_t at) const { return text_.substr(at, wanted.size()) == wanted; }

  // Moves to `end`, counting lines; what a tag may strip before it depends on the last character passed.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + end, '\n'));
    if (end > at_) line_start_ = text_[end - 1] == '\n';
    at_ = end;
  }

  size_t skip_space(size_t at) const { return text_.size() - strip_left(text_.substr(at)).size(); }

  // "-" strips all white space before the tag, "+" nothing; else a block or comment tag that is alone at the start of
  // its line strips that line's indentation.
  std::string_view strip_before_tag(std::string_view data, char sign, bool variable) const {
    if (sign == '-') return strip_right(data);
    if (sign == '+' || variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line > 0 || line_start_) && strip_left(data.substr(line)).empty()) return data.substr(0, line);
    return data;
  }

  char sign_at(size_t at) const { return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : 0; }

  // Position behind a tag's end at `at` ("%}", "-%}" with white space, "+%}"); a block or comment end takes a line end.
  std::optional<size_t> behind_end(std::string_view end, size_t at, bool variable) const {
    if (follows("-", at) && follows(end, at + 1)) return skip_space(at + 1 + end.size());
    if (!variable && follows("+", at) && follows(end, at + 1)) return at + 1 + end.size();
    if (!follows(end, at)) return std::nullopt;
    at += end.size();
    return !variable && follows("\n", at) ? at + 1 : at;
  }

  // Position behind "{% raw %}" at `at`, if that is what it is.
  std::optional<size_t> behind_raw(size_t at) const {
    at += 2;
    if (sign_at(at) != 0) ++at;
    at = skip_space(at);
    if (!follows("raw", at)) return std::nullopt;
    at = skip_space(at + 3);
    if (follows("-%}", at)) return skip_space(at + 3);
    if (follows("%}", at)) return at + 2;
    return std::nullopt;
  }

  void lex_data() {
    size_t tag = at_;
    while ((tag = text_.find('{', tag)) != std::string_view::npos) {
      if (follows("{{", tag) || follows("{%", tag) || follows("{#", tag)) break;
      ++tag;
    }
    if (tag == std::string_view::npos) {
      add_data(text_.substr(at_));
      advance(text_.size());
      return;
    }
    const bool variable = text_[tag + 1] == '{';
    const char sign = sign_at(tag + 2);
    add_data(strip_before_tag(text_.substr(at_, tag - at_), sign, variable));
    const auto raw = text_[tag + 1] == '%' ? behind_raw(tag) : std::nullopt;
    if (raw) {
      advance(*raw);
      lex_raw();
      return;
    }
    advance(tag + 2 + (sign != 0));
    if (text_[tag + 1] == '#') {
      lex_comment();
    } else {
      lex_tag(variable);
    }
  }

  void lex_comment() {
    const size_t close = text_.find("#}", at_);
    if (close == std::string_view::npos) fail_here("a comment is not closed");
    const bool signed_end = close > at_ && (text_[close - 1] == '-' || text_[close - 1] == '+');
    advance(*behind_end("#}", signed_end ? close - 1 : close, false));
  }

  void lex_raw() {
    for (size_t tag = at_; (tag = text_.find("{%", tag)) != std::string_view::npos; ++tag) {
      const char sign = sign_at(tag + 2);
      size_t at = skip_space(tag + 2 + (sign != 0));
      if (!follows("endraw", at)) continue;
      const auto end = behind_end("%}", skip_space(at + 6), false);
      if (!end) continue;
      add_data(strip_before_tag(text_.substr(at_, tag - at_), sign, false));
      advance(*end);
      return;
    }
    fail_here("a raw block is not closed");
  }

  void lex_tag(bool variable) {
    const std::string_view end = variable ? "}}" : "%}";
    add(variable ? Token::kVarBegin : Token::kBlockBegin, "");
    std::string open;  // brackets whose end is still to come
    while (true) {
      advance(skip_space(at_));
      if (at_ == text_.size()) fail_here("a tag is not closed");
      if (open.empty()) {
        if (const auto behind = behind_end(end, at_, variable)) {
          add(variable ? Token::kVarEnd : Token::kBlockEnd, "");
          advance(*behind);
          return;
        }
      }
      const char c = text_[at_];
      if (is_digit(c)) {
        lex_number();
      } else if (is_name_start(c)) {
        size_t stop = at_ + 1;
        while (stop < text_.size() && (is_name_start(text_[stop]) || is_digit(text_[stop]))) ++stop;
        add(Token::kName, std::string(text_.substr(at_, stop - at_)));
        advance(stop);
      } else if (c == '\'' || c == '"') {
        lex_string();
      } else {
        lex_operator(open);
      }
    }
  }

  size_t skip_digits(size_t at, bool hex = false) const {
    const auto digit = [&](size_t i) {
      return i < text_.size() && (is_digit(text_[i]) || (hex && std::isxdigit(static_cast<unsigned char>(text_[i]))));
    };
    while (digit(at) || (at < text_.size() && text_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  void lex_number() {
    size_t stop = at_;
    bool is_float = false;
    if (text_[at_] == '0' && at_ + 1 < text_.size() &&
        std::string_view("xXoObB").find(text_[at_ + 1]) != std::string_view::npos) {
      stop = skip_digits(at_ + 2, true);
    } else {
      stop = skip_digits(at_);
      // A number behind a point is an index ("a.0.1"), not a fraction.
      const bool index = at_ > 0 && text_[at_ - 1] == '.';
      if (!index && follows(".", stop) && stop + 1 < text_.size() && is_digit(text_[stop + 1])) {
        is_float = true;
        stop = skip_digits(stop + 1);
      }
      if (!index && stop < text_.size() && (text_[stop] == 'e' || text_[stop] == 'E')) {
        const size_t digits = stop + 1 + (sign_at(stop + 1) != 0);
        if (digits < text_.size() && is_digit(text_[digits])) {
          is_float = true;
          stop = skip_digits(digits);
        }
      }
    }
    std::string number(text_.substr(at_, stop - at_));
    std::erase(number, '_');
    add(is_float ? Token::kFloat : Token::kInt, std::move(number));
    advance(stop);
  }

  void lex_string() {
    const char quote = text_[at_];
    size_t stop = at_ + 1;
    while (stop < text_.size() && text_[stop] != quote) stop += text_[stop] == '\\' ? 2 : 1;
    if (stop >= text_.size()) fail_here("a string is not closed");
    add(Token::kString, unescape(text_.substr(at_ + 1, stop - at_ - 1)));
    advance(stop + 1);
  }

  // The value of the digits of base 8 or 16 at `at`, at most `most`; moves `at` behind them.
  static uint32_t digits_value(std::string_view text, size_t& at, size_t most, uint32_t base) {
    uint32_t value = 0;
    for (size_t i = 0; i < most && at < text.size(); ++i, ++at) {
      const char c = text[at];
      const uint32_t digit = is_digit(c)                                    ? c - '0'
                             : std::isxdigit(static_cast<unsigned char>(c)) ? (c | 32) - 'a' + 10
                                                                            : 99;
      if (digit >= base) break;
      value = value * base + digit;
    }
    return value;
  }

  // Python's escapes; an unknown one stays as it is.
  std::string unescape(std::string_view text) const {
    static constexpr std::string_view kSimple = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";  // letter, value
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      size_t simple = 0;
      while (simple < kSimple.size() && kSimple[simple] != c) simple += 2;
      if (c == '\n') continue;
      if (simple < kSimple.size()) {
        out += kSimple[simple + 1];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8, start = i;
        const uint32_t code = digits_value(text, i, count, 16);
        if (i - start != count || code > 0x10FFFF) fail_here("an escape is not complete");
        append_utf8(out, code >= 0xD800 && code < 0xE000 ? kReplacement : static_cast<char32_t>(code));
      } else if (c >= '0' && c <= '7') {
        --i;
        append_utf8(out, digits_value(text, i, 3, 8));
      } else {
        (out += '\\') += c;
      }
    }
    return out;
  }

  void lex_operator(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view two : kTwo) {
      if (follows(two, at_)) {
        add(Token::kOperator, std::string(two));
        advance(at_ + 2);
        return;
      }
    }
    const char c = text_[at_];
    if (kOne.find(c) == std::string_view::npos) fail_here(fmt::format("unexpected character '{}'", c));
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail_here(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(Token::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Lexeme> lexemes_;
};

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Decoded c = decode_utf8(text, at);
    if (!is_space(c.code_point)) break;
    at += c.length;
  }
  return text.substr(at);
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_space(decode_utf8(text, start).code_point)) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::vector<Lexeme> lex(std::string_view source) { return Lexer(source).run(); }

}  // namespace assay::text::jinja
