// A cheap scan of JSON text, before it is parsed.
#pragma once

#include <string_view>

namespace assay::server {

enum class JsonBounds { kOk, kTooDeep, kTooManyMembers };

// Whether brackets nest deeper than max_depth, or an object has more members than max_members. The parsed value is
// walked by recursion, and looks members up one after the other; both must be bounded. Text that is no JSON gets any
// answer: the parser refuses it.
JsonBounds check_json_bounds(std::string_view text, int max_depth, int max_members);

}  // namespace assay::server
