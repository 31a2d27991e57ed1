// Finding added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay::text {

// Immutable after the last add.
class AddedTokens {
 public:
  struct Match {
    size_t begin, end;  // bytes
    int32_t id;
  };

  void add(std::string content, int32_t id);  // content is not empty

  // The leftmost token at or after `from`; of those that begin there the longest.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Entry {
    std::string content;
    int32_t id;
  };
  std::array<std::vector<Entry>, 256> by_first_byte_;  // longest first
};

}  // namespace assay::text
