// Byte-pair merging of one word.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"

namespace assay::text {

// Repeatedly merges the adjacent pair of lowest rank, of equal ones the leftmost, until none is in the table:
// O(n log n) for a word of n bytes. Immutable after the last add_merge.
class Bpe {
 public:
  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  // Merges are added in order of rank. Of a repeated pair the last rank holds, as in the reference.
  void add_merge(int32_t left, int32_t right, int32_t merged);

  // With whole words set, a word that is a token is that token, whatever the merges say ("ignore_merges").
  void set_whole_words(std::unordered_map<std::string, int32_t> words) { whole_words_ = std::move(words); }

  // Appends the word's tokens.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  // Both leave the merged ids at the front and return their number.
  size_t merge_short(std::span<int32_t> ids) const;
  size_t merge_long(std::span<int32_t> ids) const;

  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  std::unordered_map<std::string, int32_t> whole_words_;
  uint32_t next_rank_ = 0;
};

}  // namespace assay::text
