// Words seen before and their tokens: a table of fixed size, in which a new word takes the place of an older one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace assay::text {

// For one thread. What words do not fit in it are not kept: long ones, and those of many tokens.
class WordCache {
 public:
  static constexpr size_t kWords = 1 << 14;

  void clear() { std::fill(entries_.begin(), entries_.end(), Entry{}); }

  // The word's tokens; none if it is not here. Valid until the next put or clear.
  std::span<const int32_t> find(std::string_view word) const {
    const Entry& entry = entries_[place(word)];
    if (std::string_view(entry.word.data(), entry.length) != word) return {};
    return {entry.ids.data(), entry.count};
  }

  void put(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxBytes || ids.size() > kMaxIds) return;
    Entry& entry = entries_[place(word)];
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(word.begin(), word.end(), entry.word.begin());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kMaxBytes = 46, kMaxIds = 20;
  struct Entry {
    uint8_t length = 0, count = 0;
    std::array<char, kMaxBytes> word{};
    std::array<int32_t, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 128);  // two lines of the cache, of which a short word needs the first alone

  static size_t place(std::string_view word) { return std::hash<std::string_view>()(word) % kWords; }

  std::vector<Entry> entries_ = std::vector<Entry>(kWords);
};

}  // namespace assay::text
