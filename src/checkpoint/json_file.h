// JSON texts of a checkpoint: an object at the top, no key twice in one object.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace assay::checkpoint {

inline constexpr size_t kMaxJsonFileBytes = size_t{256} << 20;  // an index of 10^6 tensors is about 100 MB

// `file` names the text in errors (kCheckpoint).
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& file);

// As above; kIo if the file cannot be read.
Result<nlohmann::json> read_json_object(const std::string& path);

}  // namespace assay::checkpoint
