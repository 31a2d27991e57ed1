#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace assay::text {
namespace {

int combining_class(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Canonical order: marks of a run sorted by combining class, stable. utf8proc_decompose would do this by
// swapping neighbours, which is quadratic in the length of the run.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  for (size_t i = 0; i < code_points.size();) {
    if (combining_class(code_points[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < code_points.size() && combining_class(code_points[end]) != 0) ++end;
    std::stable_sort(code_points.begin() + i, code_points.begin() + end,
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

// The bytes of U+0300 are CC 80: the lead bytes of all characters from there on are at least CC.
bool is_plain_start(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte < 0x80 || (byte >= 0xC2 && byte < 0xCC);
}
bool is_other_start(char c) { return static_cast<uint8_t>(c) >= 0xCC; }

// Appends the NFC form of `text`.
void append_normalized(std::string_view text, std::string& out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    i += c.length;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts, 32, options, &boundary);
    CHECK(count >= 0 && count <= 32, "canonical decomposition of U+{:04X} is {} long",
          static_cast<uint32_t>(c.code_point), count);
    code_points.insert(code_points.end(), parts, parts + count);
  }
  order_marks(code_points);
  const auto length =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  CHECK(length >= 0, "utf8proc error {}", length);
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(code_points[i]));
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  auto at = text.begin();
  while (at != text.end()) {
    const auto other = std::find_if(at, text.end(), is_other_start);
    auto begin = other;  // of what is normalised: the plain character before may combine with the other
    if (other != text.end() && other != at) {
      do --begin;
      while (!is_plain_start(*begin));
    }
    out.append(at, begin);
    at = std::find_if(other, text.end(), is_plain_start);
    append_normalized({begin, at}, out);
  }
  return out;
}

}  // namespace assay::text
