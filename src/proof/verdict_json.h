// Verdicts as JSON: in receipts, between a process and the one that makes first contact, and for `assay prove --json`.
#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "proof/verdict.h"

namespace assay::proof {

nlohmann::ordered_json to_json(const Verdict& verdict);
// Nothing when a field is missing or of the wrong type.
std::optional<Verdict> verdict_from_json(const nlohmann::ordered_json& json);

// 64-bit numbers as 16 hexadecimal digits: JSON numbers hold 53 bits.
std::string hex64(uint64_t value);
std::optional<uint64_t> parse_hex64(const std::string& text);

}  // namespace assay::proof
