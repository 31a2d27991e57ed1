// Splits text into words by a regular expression, with PCRE2's compiler to machine code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace assay::text {

// Immutable, usable from any thread.
class PreTokenizer {
 public:
  // pattern: as in tokenizer.json (Oniguruma syntax). kCheckpoint if PCRE2 cannot compile it.
  static Result<std::unique_ptr<PreTokenizer>> make(const std::string& pattern);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // The pieces of well-formed UTF-8, in order and without gaps: matches, and the stretches between them ("Isolated").
  // They point into `text`.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit PreTokenizer(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The pattern in PCRE2's terms. Two things differ from Oniguruma: \s counts U+180E, so \s and \S are spelt out as the
// Unicode property White_Space; and its Unicode is older, so \p{L}, \p{M} and \p{N} get the newer characters
// (unicode_additions.h). Nothing if the pattern has \S, \P or a negated \p{^..} within brackets, which cannot be spelt
// out.
std::optional<std::string> to_pcre2_pattern(std::string_view pattern);

}  // namespace assay::text
