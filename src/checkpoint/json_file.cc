#include "checkpoint/json_file.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "checkpoint/mapped_file.h"

namespace assay::checkpoint {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 100;

Error json_error(const std::string& file, std::string what, std::string got, std::string wanted) {
  return {.kind = ErrorKind::kCheckpoint,
          .what = std::move(what),
          .where = file,
          .got = std::move(got),
          .wanted = std::move(wanted),
          .hint = ""};
}

}  // namespace

Result<json> parse_json_object(std::string_view text, const std::string& file) {
  std::vector<std::unordered_set<std::string>> open_objects;
  std::string duplicate;
  bool too_deep = false;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& value) {
    too_deep = too_deep || depth > kMaxDepth;
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return !too_deep;  // false: nothing more is stored
  };
  json parsed = json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep) return json_error(file, "nested too deeply", "more", fmt::format("at most {} levels", kMaxDepth));
  if (parsed.is_discarded()) {
    return json_error(file, "not valid JSON", fmt::format("{} bytes that do not parse", text.size()), "a JSON object");
  }
  if (!parsed.is_object()) return json_error(file, "not a JSON object", parsed.type_name(), "object");
  if (!duplicate.empty()) return json_error(file, "a name appears twice", duplicate, "every name once");
  return parsed;
}

Result<json> read_json_object(const std::string& path) {
  ASSAY_ASSIGN(const MappedFile file, MappedFile::open(path));
  const ConstBytes bytes = file.bytes();
  if (bytes.size() > kMaxJsonFileBytes) {
    return json_error(path, "the file is too large", fmt::format("{} bytes", bytes.size()),
                      fmt::format("at most {}", kMaxJsonFileBytes));
  }
  return parse_json_object({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace assay::checkpoint
