#include "server/json_fields.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "server/json_bounds.h"

namespace assay::server {

using Json = nlohmann::ordered_json;

MaybeError parse_body(std::string_view text, Json& body) {
  ApiError error;
  error.code = "invalid_json";
  switch (check_json_bounds(text, kMaxJsonDepth, kMaxObjectMembers)) {
    case JsonBounds::kTooDeep:
      error.message = fmt::format("The body's JSON nests deeper than {} levels", kMaxJsonDepth);
      return error;
    case JsonBounds::kTooManyMembers:
      error.message = fmt::format("An object of the body has more than {} members", kMaxObjectMembers);
      return error;
    case JsonBounds::kOk:
      break;
  }
  try {
    body = Json::parse(text);
  } catch (const Json::exception& problem) {
    error.message = fmt::format("The body is not valid JSON: {}", problem.what());
    return error;
  }
  if (!body.is_object()) {
    error.message = fmt::format("The body must be a JSON object, not {}", body.type_name());
    return error;
  }
  return {};
}

const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

ApiError wrong_type(const std::string& param, std::string_view wanted, const Json& got) {
  const std::string what = got.is_number() ? "the number " + got.dump() : got.type_name();
  return invalid_field(param, fmt::format("{} must be {}, not {}", param, wanted, what));
}

MaybeError read_bool(const Json& object, const char* name, bool& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_boolean()) return wrong_type(name, "a boolean", *value);
  out = value->get<bool>();
  return {};
}

MaybeError read_string(const Json& object, const char* name, std::string& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_string()) return wrong_type(name, "a string", *value);
  out = value->get<std::string>();
  return {};
}

MaybeError read_number(const Json& object, const char* name, double low, double high, std::optional<float>& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_number()) return wrong_type(name, "a number", *value);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    return invalid_field(name, fmt::format("{} must be from {} to {}, not {}", name, low, high, number));
  }
  out = static_cast<float>(number);
  return {};
}

MaybeError read_int(const Json& object, const char* name, int64_t low, int64_t high, std::optional<int32_t>& out) {
  const Json* value = member(object, name);
  if (!value) return {};
  if (!value->is_number_integer()) return wrong_type(name, "an integer", *value);
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > std::numeric_limits<int64_t>::max();
  const int64_t number = huge ? std::numeric_limits<int64_t>::max() : value->get<int64_t>();
  if (number < low) return invalid_field(name, fmt::format("{} must be >= {}, not {}", name, low, value->dump()));
  if (number > high) return invalid_field(name, fmt::format("{} must be <= {}, not {}", name, high, value->dump()));
  out = static_cast<int32_t>(number);
  return {};
}

MaybeError read_token_ids(const Json& list, const std::string& where, size_t most, std::vector<int32_t>& out) {
  if (!list.is_array()) return wrong_type(where, "a list of token ids", list);
  if (list.size() > most) {
    return invalid_field(where, fmt::format("{} may hold at most {} token ids, not {}", where, most, list.size()));
  }
  out.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer()) return wrong_type(where, "a list of token ids", id);
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits) return invalid_field(where, fmt::format("{} holds {}, which is no token id", where, id.dump()));
    out.push_back(id.get<int32_t>());
  }
  return {};
}

}  // namespace assay::server
