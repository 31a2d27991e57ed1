#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
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

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

void append_decomposed(char32_t code_point, std::vector<utf8proc_int32_t>& out) {
  utf8proc_int32_t parts[32];
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts, 32, kOptions, &boundary);
  CHECK(count >= 0 && count <= 32, "canonical decomposition of U+{:04X} is {} long", static_cast<uint32_t>(code_point),
        count);
  out.insert(out.end(), parts, parts + count);
}

void compose(std::vector<utf8proc_int32_t>& code_points) {
  const auto length =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kOptions);
  CHECK(length >= 0, "utf8proc error {}", length);
  code_points.resize(static_cast<size_t>(length));
}

// Appends the NFC form of `text`.
void append_normalized(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    i += c.length;
    append_decomposed(c.code_point, code_points);
  }
  order_marks(code_points);
  compose(code_points);
  for (const utf8proc_int32_t c : code_points) append_utf8(out, static_cast<char32_t>(c));
}

// The characters below U+10000 that are in NFC, of combining class 0, and combine with nothing before them: text of
// such characters alone is in NFC, and other text may be cut before each of them.
class Settled {
 public:
  Settled() {
    std::vector<utf8proc_int32_t> parts;
    std::vector<utf8proc_int32_t> later;  // that some character decomposes to, but not first
    for (char32_t c = 0; c < kEnd; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      parts.clear();
      append_decomposed(c, parts);
      later.insert(later.end(), parts.begin() + 1, parts.end());
      compose(parts);
      yes_[c] =
          combining_class(static_cast<int32_t>(c)) == 0 && parts.size() == 1 && parts[0] == static_cast<int32_t>(c);
    }
    for (const utf8proc_int32_t c : later) yes_[static_cast<size_t>(c)] = false;
  }

  // Bytes of the character at `at` of well-formed text; 0 if it is none of these.
  size_t length(std::string_view text, size_t at) const {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
    const uint32_t lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead < 0xCC) return 2;  // below U+0300 all are
    if (lead < 0xE0) return yes_[(lead & 0x1F) << 6 | (byte(1) & 0x3F)] ? 2 : 0;
    if (lead >= 0xF0) return 0;
    return yes_[(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)] ? 3 : 0;
  }

 private:
  static constexpr char32_t kEnd = 0x10000;
  std::bitset<kEnd> yes_;
};

}  // namespace

std::string normalize_nfc(std::string_view text) {
  static const Settled settled;
  std::string out;
  out.reserve(text.size());
  size_t done = 0;    // what is before is in out
  size_t before = 0;  // the settled character before `at`: the one at `at` may combine with it
  for (size_t at = 0; at < text.size();) {
    if (const size_t length = settled.length(text, at)) {
      before = at;
      at += length;
      continue;
    }
    while (at < text.size() && settled.length(text, at) == 0) at += decode_utf8(text, at).length;
    out.append(text, done, before - done);
    append_normalized(text.substr(before, at - before), out);
    done = before = at;
  }
  return out.append(text, done);
}

}  // namespace assay::text
