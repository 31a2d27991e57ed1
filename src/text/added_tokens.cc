#include "text/added_tokens.h"

#include <algorithm>

namespace assay::text {

void AddedTokens::add(std::string content, int32_t id) {
  const char first = content[0];
  if (first_bytes_.find(first) == std::string::npos) first_bytes_ += first;
  auto& bucket = by_first_byte_[static_cast<uint8_t>(first)];
  const auto place = std::find_if(bucket.begin(), bucket.end(),
                                  [&](const Entry& entry) { return entry.content.size() < content.size(); });
  bucket.insert(place, Entry{std::move(content), id});
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; (at = text.find_first_of(first_bytes_, at)) != std::string_view::npos; ++at) {
    for (const Entry& entry : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      if (text.compare(at, entry.content.size(), entry.content) == 0)
        return Match{at, at + entry.content.size(), entry.id};
    }
  }
  return std::nullopt;
}

}  // namespace assay::text
