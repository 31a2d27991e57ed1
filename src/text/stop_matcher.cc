#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace assay::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    Pattern pattern;
    pattern.fallback.assign(stop.size() + 1, 0);
    size_t border = 0;
    for (size_t i = 1; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = pattern.fallback[border];
      if (stop[i] == stop[border]) ++border;
      pattern.fallback[i + 1] = border;
    }
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

StopMatcher::Out StopMatcher::push(std::string_view text) {
  if (matched_ >= 0) return {"", matched_};
  for (const char byte : text) {
    pending_ += byte;
    size_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      if (pattern.text.empty()) continue;
      while (pattern.matched > 0 && byte != pattern.text[pattern.matched]) {
        pattern.matched = pattern.fallback[pattern.matched];
      }
      if (byte == pattern.text[pattern.matched]) ++pattern.matched;
      if (pattern.matched == pattern.text.size() && pattern.matched > longest) {
        longest = pattern.matched;
        matched_ = static_cast<int>(i);
      }
    }
    if (matched_ >= 0) {
      pending_.resize(pending_.size() - longest);
      return {std::exchange(pending_, {}), matched_};
    }
  }
  size_t held = 0;
  for (const Pattern& pattern : patterns_) held = std::max(held, pattern.matched);
  Out out{pending_.substr(0, pending_.size() - held), -1};
  pending_.erase(0, pending_.size() - held);
  return out;
}

std::string StopMatcher::finish() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(pending_, {});
}

}  // namespace assay::text
