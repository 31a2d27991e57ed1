#include "text/added_tokens.h"

#include <algorithm>

namespace assay::text {

void AddedTokens::add(std::string content, int32_t id) {
  auto& bucket = by_first_byte_[static_cast<uint8_t>(content[0])];
  const auto place = std::find_if(bucket.begin(), bucket.end(),
                                  [&](const Entry& entry) { return entry.content.size() < content.size(); });
  bucket.insert(place, Entry{std::move(content), id});
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const Entry& entry : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      if (text.compare(at, entry.content.size(), entry.content) == 0)
        return Match{at, at + entry.content.size(), entry.id};
    }
  }
  return std::nullopt;
}

}  // namespace assay::text
