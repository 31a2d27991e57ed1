#include "proof/verdict_json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

namespace assay::proof {
namespace {

using nlohmann::ordered_json;

// JSON has no infinity: null stands for it.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

bool read(const ordered_json& json, double& value) {
  if (json.is_null()) value = std::numeric_limits<double>::infinity();
  if (json.is_number()) value = json.get<double>();
  return json.is_null() || json.is_number();
}

bool read(const ordered_json& json, std::string& value) {
  if (json.is_string()) value = json.get<std::string>();
  return json.is_string();
}

template <class Integer>
requires std::is_integral_v<Integer>
bool read(const ordered_json& json, Integer& value) {
  if (json.is_number_integer()) value = json.get<Integer>();
  return json.is_number_integer();
}

bool read(const ordered_json& json, bool& value) {
  if (json.is_boolean()) value = json.get<bool>();
  return json.is_boolean();
}

bool read(const ordered_json& json, std::vector<Timing>& timings);

template <class T>
bool read(const ordered_json& object, const char* key, T& value) {
  const auto found = object.find(key);
  return found != object.end() && read(*found, value);
}

bool read(const ordered_json& json, std::vector<Timing>& timings) {
  if (!json.is_array()) return false;
  for (const ordered_json& entry : json) {
    Timing timing;
    if (!entry.is_object() || !read(entry, "tokens", timing.tokens) ||
        !read(entry, "microseconds", timing.microseconds) || !(timing.microseconds > 0)) {
      return false;
    }
    timings.push_back(timing);
  }
  return true;
}

bool read_hex(const ordered_json& object, const char* key, uint64_t& value) {
  std::string text;
  if (!read(object, key, text)) return false;
  const auto parsed = parse_hex64(text);
  if (parsed) value = *parsed;
  return parsed.has_value();
}

}  // namespace

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> parse_hex64(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) return std::nullopt;
  return value;
}

ordered_json to_json(const Verdict& v) {
  ordered_json json{{"op", v.op},
                    {"desc", v.desc},
                    {"row", v.row},
                    {"tokens", v.bucket.tokens},
                    {"sequences", v.bucket.sequences},
                    {"outputs", v.bucket.outputs},
                    {"verdict", state_name(v.state)},
                    {"reason", v.reason},
                    {"passed_over", v.passed_over}};
  ordered_json kinds = ordered_json::object();
  for (size_t i = 0; i < v.ratios.size(); ++i) {
    if (v.ratios[i] != 0) kinds[std::string(ops::evidence_name(static_cast<ops::Evidence>(i)))] = number(v.ratios[i]);
  }
  json["worst"] = {{"error_over_bound", number(v.worst.ratio)},
                   {"kind", ops::evidence_name(v.worst.kind)},
                   {"where", v.worst.where},
                   {"got", number(v.worst.got)},
                   {"expected", number(v.worst.expected)},
                   {"bound", number(v.worst.bound)}};
  json["error_over_bound"] = std::move(kinds);
  json["repeats"] = v.repeats;
  json["comparisons"] = v.comparisons;
  json["milliseconds"] = v.milliseconds;
  json["cases_milliseconds"] = v.cases_milliseconds;
  json["timings"] = ordered_json::array();
  for (const Timing& timing : v.timings) {
    json["timings"].push_back({{"tokens", timing.tokens}, {"microseconds", timing.microseconds}});
  }
  json["order"] = hex64(v.order);
  json["digest"] = hex64(v.digest);
  json["small_shapes_only"] = v.light;
  json["from_receipt"] = v.remembered;
  return json;
}

std::optional<Verdict> verdict_from_json(const ordered_json& json) {
  if (!json.is_object()) return std::nullopt;
  Verdict v;
  std::string state, kind;
  bool good = read(json, "op", v.op) && read(json, "desc", v.desc) && read(json, "row", v.row) &&
              read(json, "tokens", v.bucket.tokens) && read(json, "sequences", v.bucket.sequences) &&
              read(json, "outputs", v.bucket.outputs) && read(json, "verdict", state) &&
              read(json, "reason", v.reason) && read(json, "passed_over", v.passed_over) &&
              read(json, "repeats", v.repeats) && read(json, "comparisons", v.comparisons) &&
              read(json, "milliseconds", v.milliseconds) && read(json, "cases_milliseconds", v.cases_milliseconds) &&
              read(json, "timings", v.timings) && read_hex(json, "order", v.order) &&
              read_hex(json, "digest", v.digest) && read(json, "small_shapes_only", v.light) &&
              json.contains("worst") && json.contains("error_over_bound");
  if (!good) return std::nullopt;
  const ordered_json& worst = json["worst"];
  const ordered_json& kinds = json["error_over_bound"];
  good = worst.is_object() && kinds.is_object() && read(worst, "error_over_bound", v.worst.ratio) &&
         read(worst, "kind", kind) && read(worst, "where", v.worst.where) && read(worst, "got", v.worst.got) &&
         read(worst, "expected", v.worst.expected) && read(worst, "bound", v.worst.bound);
  if (!good) return std::nullopt;
  for (size_t i = 0; i < v.ratios.size(); ++i) {
    const auto evidence = static_cast<ops::Evidence>(i);
    const std::string name(ops::evidence_name(evidence));
    if (kind == name) v.worst.kind = evidence;
    if (kinds.contains(name) && !read(kinds[name], v.ratios[i])) return std::nullopt;
  }
  for (const State named : {State::kPassed, State::kFailed, State::kRefused, State::kSkipped}) {
    if (state != state_name(named)) continue;
    v.state = named;
    return v;
  }
  return std::nullopt;
}

}  // namespace assay::proof
