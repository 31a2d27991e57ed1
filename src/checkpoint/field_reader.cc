#include "checkpoint/field_reader.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace assay::checkpoint {
namespace {

using nlohmann::json;

std::optional<int64_t> integer_in(const json& value, IntegerRange range) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  const auto integer = value.get<int64_t>();
  if (integer < range.least || integer > range.most) return std::nullopt;
  return integer;
}

std::string range_text(IntegerRange range) { return fmt::format("an integer from {} to {}", range.least, range.most); }

}  // namespace

FieldReader::FieldReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  CHECK(object_.is_object(), "{}", where_);
}

const json* FieldReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool FieldReader::has(const char* key) const { return find(key) != nullptr; }

int64_t FieldReader::integer(const char* key, IntegerRange range) {
  if (!has(key)) refuse(key, "field is missing", "nothing", range_text(range));
  return integer_or(key, 0, range);
}

int64_t FieldReader::integer_or(const char* key, int64_t fallback, IntegerRange range) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  const std::optional<int64_t> integer = integer_in(*value, range);
  if (!integer) refuse(key, "bad value", value->dump(), range_text(range));
  return integer.value_or(fallback);
}

double FieldReader::positive_or(const char* key, double fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
    refuse(key, "bad value", value->dump(), "a number above 0");
    return fallback;
  }
  return value->get<double>();
}

bool FieldReader::boolean_or(const char* key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    refuse(key, "bad value", value->dump(), "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string FieldReader::string_or(const char* key, const std::string& fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    refuse(key, "bad value", value->dump(), "a string");
    return fallback;
  }
  return value->get<std::string>();
}

std::vector<std::string> FieldReader::strings_or_empty(const char* key) {
  const json* value = find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  if (!value->is_array()) refuse(key, "bad value", value->dump(), "a list of strings");
  for (size_t i = 0; value->is_array() && i < value->size(); ++i) {
    const json& element = (*value)[i];
    if (!element.is_string()) {
      refuse(fmt::format("{}[{}]", key, i), "bad value", element.dump(), "a string");
      break;
    }
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

std::vector<int64_t> FieldReader::integers_or_empty(const char* key, IntegerRange range) {
  const json* value = find(key);
  std::vector<int64_t> integers;
  if (value == nullptr) return integers;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& element : list) {
    const std::optional<int64_t> integer = integer_in(element, range);
    if (!integer) {
      refuse(key, "bad value", value->dump(), range_text(range) + ", or a list of them");
      break;
    }
    integers.push_back(*integer);
  }
  return integers;
}

void FieldReader::refuse(const std::string& key, std::string what, std::string got, std::string wanted,
                         ErrorKind kind) {
  if (error_) return;
  error_ = Error{.kind = kind,
                 .what = std::move(what),
                 .where = where_ + ": " + key,
                 .got = std::move(got),
                 .wanted = std::move(wanted),
                 .hint = ""};
}

Result<void> FieldReader::result() const {
  if (error_) return *error_;
  return {};
}

}  // namespace assay::checkpoint
