// Template source to tokens, with jinja2's rules for white space under trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay::text::jinja {

enum class Token : uint8_t {
  kData,      // text outside of tags
  kVarBegin,  // {{
  kVarEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // without quotes, escapes resolved
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Lexeme {
  Token token;
  std::string text;
  int line;
};

// Line ends become "\n" and one at the very end is dropped. The last lexeme is kEnd. Throws Fault.
std::vector<Lexeme> lex(std::string_view source);

// str.isspace, which is also what \s matches in Python: White_Space and U+001C to U+001F.
bool is_space(char32_t code_point);

// str.strip and its halves, for white space.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

}  // namespace assay::text::jinja
