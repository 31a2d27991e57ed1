#include "text/detokenizer.h"

#include "text/utf8.h"

namespace assay::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const Decoded c = decode_utf8(pending_, at);
    if (c.truncated) break;
    append_utf8(out, c.code_point);
    at += c.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Detokenizer::finish() {
  std::string out = repair_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace assay::text
