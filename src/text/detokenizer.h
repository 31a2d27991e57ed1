// Token ids to text, as they arrive.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace assay::text {

// Never emits part of a UTF-8 character: an unfinished one waits for its next bytes. All pushes and finish() put
// together equal the decoding of all ids at once, where ill-formed bytes read U+FFFD (one for each maximal ill-formed
// subsequence). The tokenizer must outlive it. Ids without a token add nothing.
class Detokenizer {
 public:
  // skip_special: tokens for which Tokenizer::is_special holds add nothing.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);

  std::string push(int32_t id);

  // What is left: U+FFFD for an unfinished character. The detokenizer is then as new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes: the start of a character
};

}  // namespace assay::text
