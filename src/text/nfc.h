// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace assay::text {

// True if no character is one that normalisation could touch (all below U+0300). False promises nothing.
bool is_plainly_nfc(std::string_view text);

// The NFC form of well-formed UTF-8, in O(n log n) also for long runs of combining marks.
std::string normalize_nfc(std::string_view text);

}  // namespace assay::text
