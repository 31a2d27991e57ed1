// Reads typed fields of a JSON object and remembers the first fault, so that a parser is one line per field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace assay::checkpoint {

struct IntegerRange {
  int64_t least;
  int64_t most;
};

// A key that holds null counts as absent. A field at fault reads as its fallback (or zero); only the first fault is
// kept.
class FieldReader {
 public:
  // `object` must be a JSON object and outlive the reader; `where` names it: "config.json" or "config.json:
  // text_config".
  FieldReader(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;
  // The value, or null if absent.
  const nlohmann::json* find(const char* key) const;

  // Required.
  int64_t integer(const char* key, IntegerRange range);
  // With a value for absence.
  int64_t integer_or(const char* key, int64_t fallback, IntegerRange range);
  double positive_or(const char* key, double fallback);
  bool boolean_or(const char* key, bool fallback);
  std::string string_or(const char* key, const std::string& fallback);
  std::vector<std::string> strings_or_empty(const char* key);
  // An integer or a list of integers; empty if absent.
  std::vector<int64_t> integers_or_empty(const char* key, IntegerRange range);

  // Record a fault found by the caller.
  void refuse(const std::string& key, std::string what, std::string got, std::string wanted,
              ErrorKind kind = ErrorKind::kCheckpoint);

  bool ok() const { return !error_; }
  // The first fault.
  Result<void> result() const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace assay::checkpoint
