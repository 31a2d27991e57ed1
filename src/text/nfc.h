// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace assay::text {

// The NFC form of well-formed UTF-8, in O(n log n) also for long runs of combining marks. Only characters from U+0300
// on, and the one before them, take more than a copy: those below are in NFC and combine with nothing before them.
std::string normalize_nfc(std::string_view text);

}  // namespace assay::text
