// Reading the members of a request's JSON body. Every reader returns the error that the client gets, naming the field,
// or nothing. A member that is null counts as left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/api_error.h"

namespace assay::server {

using MaybeError = std::optional<ApiError>;

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxObjectMembers = 1024;

#define ASSAY_FIELD(expr)                      \
  do {                                         \
    if (auto refused = (expr)) return refused; \
  } while (0)

// A JSON object, its depth and members bounded before it is parsed.
MaybeError parse_body(std::string_view text, nlohmann::ordered_json& body);

// The member, or null if it is absent or null.
const nlohmann::ordered_json* member(const nlohmann::ordered_json& object, const char* name);

ApiError wrong_type(const std::string& param, std::string_view wanted, const nlohmann::ordered_json& got);

MaybeError read_bool(const nlohmann::ordered_json& object, const char* name, bool& out);
MaybeError read_string(const nlohmann::ordered_json& object, const char* name, std::string& out);
MaybeError read_number(const nlohmann::ordered_json& object, const char* name, double low, double high,
                       std::optional<float>& out);
MaybeError read_int(const nlohmann::ordered_json& object, const char* name, int64_t low, int64_t high,
                    std::optional<int32_t>& out);
// A list of token ids, each from 0 to 2^31 - 1; `where` names it.
MaybeError read_token_ids(const nlohmann::ordered_json& list, const std::string& where, size_t most,
                          std::vector<int32_t>& out);

}  // namespace assay::server
