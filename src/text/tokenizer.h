// Byte-level BPE tokenizer read from a Hugging Face tokenizer.json.
//
// encode: added tokens are cut out of the text (leftmost, then longest), every remaining stretch is normalised (NFC),
// split into words by the pre-tokenizer's regular expression, and each word's bytes are merged by rank. Nothing is
// added at either end. The result equals the `tokenizers` library's; tests/goldens/text holds its output.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace assay::text {

class Bpe;
class AddedTokens;
class PreTokenizer;
struct TokenizerFile;

// Immutable once loaded; every const member may be called from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.json and, if present, tokenizer_config.json (eos_token; its added_tokens_decoder must agree with
  // tokenizer.json, and tokens that only it names are added). kIo: a file cannot be read; kCheckpoint: it is missing,
  // damaged, contradicts the other, or has a normalizer, pre-tokenizer or model of another kind.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& model_directory);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Bytes that are not UTF-8 are read as U+FFFD, one for each maximal ill-formed subsequence.
  std::vector<int32_t> encode(std::string_view text) const;

  // The bytes a token stands for (not always whole characters); of an added token its content; of an unknown id
  // nothing. The view lives as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;

  // The id of the added token with exactly this content.
  std::optional<int32_t> added_token(std::string_view content) const;

  // An added token marked special: left out of text shown to users.
  bool is_special(int32_t id) const;

  // One more than the highest id of a real token. Model rows at or above it are padding.
  int32_t vocabulary_size() const { return static_cast<int32_t>(bytes_.size()); }

  std::optional<int32_t> eos_token() const { return eos_token_; }

 private:
  Tokenizer();
  Result<void> build(TokenizerFile file);
  Result<void> build_model(const TokenizerFile& file);
  Result<void> add_tokens(const TokenizerFile& file);
  void encode_stretch(std::string_view text, std::vector<int32_t>& out) const;
  void encode_words(std::string_view normalized, std::vector<int32_t>& out) const;

  uint64_t serial_;  // no other tokenizer of this process has it
  bool normalize_nfc_ = false;
  std::unique_ptr<Bpe> bpe_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<AddedTokens> raw_added_;         // matched in the text as given
  std::unique_ptr<AddedTokens> normalized_added_;  // matched after normalisation
  std::vector<std::string> bytes_;                 // by id
  std::map<std::string, int32_t, std::less<>> added_ids_;
  std::vector<uint8_t> special_;  // by id
  std::optional<int32_t> eos_token_;
};

}  // namespace assay::text
