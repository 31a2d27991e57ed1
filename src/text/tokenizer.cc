#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <unordered_map>
#include <utility>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace assay::text {
namespace {

// The byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards in order.
std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    letters[b] = printable ? b : next++;
  }
  return letters;
}

// A token's bytes from its spelling; nothing if a letter is outside the alphabet.
std::optional<std::string> spelt_bytes(const std::string& spelling, const std::unordered_map<char32_t, char>& bytes) {
  std::string out;
  for (const char32_t letter : to_code_points(spelling)) {
    const auto it = bytes.find(letter);
    if (it == bytes.end()) return std::nullopt;
    out += it->second;
  }
  return out;
}

Error damaged(std::string what, std::string got) {
  return {ErrorKind::kCheckpoint, std::move(what), "tokenizer.json", std::move(got), "", ""};
}

std::atomic<uint64_t> tokenizers_made{0};

}  // namespace

Tokenizer::Tokenizer() : serial_(++tokenizers_made) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& model_directory) {
  ASSAY_ASSIGN(TokenizerFile file, read_tokenizer_file(model_directory));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  ASSAY_TRY(tokenizer->build(std::move(file)));
  return tokenizer;
}

Result<void> Tokenizer::build(TokenizerFile file) {
  normalize_nfc_ = file.normalize_nfc;
  if (normalize_nfc_) normalize_nfc({});  // makes its table now, not in the first request
  auto pre_tokenizer = PreTokenizer::make(file.pattern);
  if (!pre_tokenizer.ok()) {
    Error error = std::move(pre_tokenizer).error();
    error.where = "tokenizer.json: " + error.where;
    return error;
  }
  pre_tokenizer_ = std::move(pre_tokenizer).value();
  int32_t size = 0;
  for (const auto& [spelling, id] : file.vocabulary) size = std::max(size, id + 1);
  for (const AddedToken& token : file.added) size = std::max(size, token.id + 1);
  bytes_.resize(size);
  special_.resize(size);
  ASSAY_TRY(build_model(file));
  ASSAY_TRY(add_tokens(file));
  if (file.eos_token) {
    eos_token_ = added_token(*file.eos_token);
    if (!eos_token_) {
      return Error{
          ErrorKind::kCheckpoint, "eos_token is no added token", "tokenizer_config.json", *file.eos_token, "", ""};
    }
  }
  return {};
}

Result<void> Tokenizer::build_model(const TokenizerFile& file) {
  const auto alphabet = byte_alphabet();
  std::unordered_map<char32_t, char> letter_bytes;
  for (size_t b = 0; b < 256; ++b) letter_bytes[alphabet[b]] = static_cast<char>(b);

  std::unordered_map<std::string, int32_t> ids;  // by bytes
  for (const auto& [spelling, id] : file.vocabulary) {
    auto bytes = spelt_bytes(spelling, letter_bytes);
    if (!bytes) {
      // Older files list their added tokens in the vocabulary too, in plain spelling.
      const auto added = std::find_if(file.added.begin(), file.added.end(),
                                      [&name = spelling](const AddedToken& token) { return token.content == name; });
      if (added == file.added.end()) return damaged("a token outside the byte alphabet", spelling);
      if (added->id == id) continue;
      return damaged("vocab and added_tokens give a token two ids",
                     fmt::format("{} = {} and {}", spelling, id, added->id));
    }
    if (!bytes_[id].empty()) return damaged("vocab: two tokens with one id", fmt::format("{} = {}", spelling, id));
    bytes_[id] = *bytes;
    ids.emplace(std::move(*bytes), id);
  }
  std::array<int32_t, 256> byte_ids{};
  for (size_t b = 0; b < 256; ++b) {
    const auto it = ids.find(std::string(1, static_cast<char>(b)));
    if (it == ids.end()) return damaged("a byte without a token", fmt::format("0x{:02x}", b));
    byte_ids[b] = it->second;
  }
  bpe_ = std::make_unique<Bpe>(byte_ids);
  for (const auto& [left, right] : file.merges) {
    const auto left_bytes = spelt_bytes(left, letter_bytes), right_bytes = spelt_bytes(right, letter_bytes);
    if (!left_bytes || !right_bytes) return damaged("a merge outside the byte alphabet", left + " " + right);
    const auto l = ids.find(*left_bytes), r = ids.find(*right_bytes), both = ids.find(*left_bytes + *right_bytes);
    if (l == ids.end() || r == ids.end() || both == ids.end()) {
      return damaged("a merge of or into no token", left + " " + right);
    }
    bpe_->add_merge(l->second, r->second, both->second);
  }
  if (file.ignore_merges) bpe_->set_whole_words(std::move(ids));
  return {};
}

Result<void> Tokenizer::add_tokens(const TokenizerFile& file) {
  raw_added_ = std::make_unique<AddedTokens>();
  normalized_added_ = std::make_unique<AddedTokens>();
  for (const AddedToken& token : file.added) {
    if (!added_ids_.emplace(token.content, token.id).second) return damaged("an added token twice", token.content);
    std::string& bytes = bytes_[token.id];
    if (!bytes.empty() && bytes != token.content) {
      return damaged("an added token has the id of another token",
                     fmt::format("{} = {}, and {} = {}", token.id, token.content, token.id, repair_utf8(bytes)));
    }
    bytes = token.content;
    special_[token.id] = token.special;
    if (token.normalized) {
      normalized_added_->add(normalize_nfc_ ? normalize_nfc(repair_utf8(token.content)) : token.content, token.id);
    } else {
      raw_added_->add(token.content, token.id);
    }
  }
  return {};
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  size_t at = 0;
  while (const auto match = raw_added_->find(text, at)) {
    encode_stretch(text.substr(at, match->begin - at), out);
    out.push_back(match->id);
    at = match->end;
  }
  encode_stretch(text.substr(at), out);
  return out;
}

void Tokenizer::encode_stretch(std::string_view text, std::vector<int32_t>& out) const {
  std::string normalized;
  if (normalize_nfc_) {
    normalized = normalize_nfc(text);
    text = normalized;
  }
  size_t at = 0;
  while (const auto match = normalized_added_->find(text, at)) {
    encode_words(text.substr(at, match->begin - at), out);
    out.push_back(match->id);
    at = match->end;
  }
  encode_words(text.substr(at), out);
}

void Tokenizer::encode_words(std::string_view normalized, std::vector<int32_t>& out) const {
  thread_local WordCache cache;  // one for each thread, so that no lock is needed
  thread_local uint64_t cache_owner = 0;
  thread_local std::vector<std::string_view> words;
  if (std::exchange(cache_owner, serial_) != serial_) cache.clear();
  words.clear();
  pre_tokenizer_->split(normalized, words);
  for (const std::string_view word : words) {
    if (const std::span<const int32_t> ids = cache.find(word); !ids.empty()) {
      out.insert(out.end(), ids.begin(), ids.end());
      continue;
    }
    const size_t begin = out.size();
    bpe_->encode(word, out);
    cache.put(word, std::span(out).subspan(begin));
  }
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  return bytes_[id];
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto it = added_ids_.find(content);
  if (it == added_ids_.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocabulary_size() && special_[id] != 0; }

}  // namespace assay::text
