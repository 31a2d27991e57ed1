// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace assay::text {

// The NFC form of well-formed UTF-8, in O(n log n) also for long runs of combining marks. Only characters that
// may change or combine, and the one before each, take more than a copy.
std::string normalize_nfc(std::string_view text);

}  // namespace assay::text
