// What tokenizer.json and tokenizer_config.json say, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace assay::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;
};

struct TokenizerFile {
  bool normalize_nfc = false;
  std::string pattern;                                      // of the pre-tokenizer's Split
  std::vector<std::pair<std::string, int32_t>> vocabulary;  // spelt in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rank, in the byte alphabet
  bool ignore_merges = false;
  std::vector<AddedToken> added;
  std::optional<std::string> eos_token;
};

// kIo and kCheckpoint as Tokenizer::load.
Result<TokenizerFile> read_tokenizer_file(const std::string& model_directory);

}  // namespace assay::text
