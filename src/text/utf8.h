// UTF-8: reading, writing and repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace assay::text {

constexpr char32_t kReplacement = 0xFFFD;

struct Decoded {
  char32_t code_point;
  uint32_t length;  // bytes read, at least 1
  bool valid;       // false: `length` bytes are a maximal ill-formed subsequence and code_point is U+FFFD
  bool truncated;   // ill-formed only because the text ends: more bytes could complete it
};

// The character at text[at], at < text.size(). Ill-formed bytes are grouped as the Unicode standard advises (section
// 3.9, "substitution of maximal subparts"), which is also what Python and Rust do.
Decoded decode_utf8(std::string_view text, size_t at);

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view text);

// Ill-formed bytes replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

// Characters of well-formed text.
size_t count_code_points(std::string_view text);

// Well-formed text as code points.
std::u32string to_code_points(std::string_view text);
std::string to_utf8(std::u32string_view code_points);

}  // namespace assay::text
