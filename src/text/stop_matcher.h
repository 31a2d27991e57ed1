// Stop strings over streamed text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace assay::text {

// The first stop string to be complete wins; of several complete at the same byte the longest, then the one given
// first. Empty stop strings never match. The result does not depend on how the text is cut into pushes.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  struct Out {
    std::string text;  // safe to show: cannot be part of a stop string
    int matched = -1;  // index of the stop string that matched; text then ends right before it
  };

  // After a match every push returns no text and the same index.
  Out push(std::string_view text);

  // The held-back rest, which turned out to be no stop string.
  std::string finish();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // Knuth-Morris-Pratt: longest proper border of each prefix
    size_t matched = 0;            // bytes of text that the stream's end agrees with
  };
  std::vector<Pattern> patterns_;
  std::string pending_;
  int matched_ = -1;
};

}  // namespace assay::text
