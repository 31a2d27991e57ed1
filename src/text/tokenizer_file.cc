#include "text/tokenizer_file.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace assay::text {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMaxId = 1 << 24;  // far above any vocabulary; bounds the tables a damaged file can ask for
constexpr int kMaxDepth = 100;       // messages print values by recursion

Error damaged(const std::string& where, std::string what, std::string got = "", std::string wanted = "") {
  return {ErrorKind::kCheckpoint, std::move(what), where, std::move(got), std::move(wanted), ""};
}

Error unknown_kind(const std::string& where, std::string got, std::string wanted) {
  return {ErrorKind::kCheckpoint, "unknown kind", where, std::move(got), std::move(wanted), ""};
}

Result<Json> read_json(const std::string& path) {
  if (!std::filesystem::exists(path)) return damaged(path, "the file is missing");
  ASSAY_ASSIGN(const std::string text, read_file(path));
  bool too_deep = false;
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;  // false: nothing more is stored
  };
  Json json = Json::parse(text, watch, false);
  if (too_deep) return damaged(path, "nested too deeply", "more", fmt::format("at most {} levels", kMaxDepth));
  if (!json.is_object()) return damaged(path, "not a JSON object");
  return json;
}

const Json& member(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(name);
  return it == object.end() ? null : *it;
}

bool flag(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_boolean() && value.get<bool>();
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

std::string kind_of(const Json& object) { return object.is_null() ? "none" : text_of(member(object, "type")); }

Result<int32_t> id_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMaxId) {
    return damaged(where, "not a token id", value.dump(), fmt::format("0 to {}", kMaxId - 1));
  }
  return value.get<int32_t>();
}

// Only the family's pipeline is known: Split(regex, isolated), then ByteLevel without its own regex or prefix space.
Result<void> read_pipeline(const Json& json, const std::string& path, TokenizerFile& file) {
  const std::string normalizer = kind_of(member(json, "normalizer"));
  if (normalizer != "NFC" && normalizer != "none")
    return unknown_kind(path + ": normalizer", normalizer, "NFC or none");
  file.normalize_nfc = normalizer == "NFC";
  const Json& steps = member(member(json, "pre_tokenizer"), "pretokenizers");
  const std::string where = path + ": pre_tokenizer";
  if (!steps.is_array() || steps.size() != 2 || kind_of(steps[0]) != "Split" || kind_of(steps[1]) != "ByteLevel") {
    return unknown_kind(where, member(json, "pre_tokenizer").dump().substr(0, 200), "Split, then ByteLevel");
  }
  const Json& pattern = member(member(steps[0], "pattern"), "Regex");
  if (!pattern.is_string() || text_of(member(steps[0], "behavior")) != "Isolated" || flag(steps[0], "invert")) {
    return unknown_kind(where, steps[0].dump(), "a Regex pattern, behavior Isolated, invert false");
  }
  if (flag(steps[1], "use_regex") || flag(steps[1], "add_prefix_space")) {
    return unknown_kind(where, steps[1].dump(), "use_regex false, add_prefix_space false");
  }
  file.pattern = pattern.get<std::string>();
  return {};
}

Result<void> read_model(const Json& model, const std::string& path, TokenizerFile& file) {
  const std::string where = path + ": model";
  if (kind_of(model) != "BPE") return unknown_kind(where, kind_of(model), "BPE");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(member(model, name)).empty())
      return unknown_kind(where + "." + name, text_of(member(model, name)), "none");
  }
  if (flag(model, "byte_fallback")) return unknown_kind(where + ".byte_fallback", "true", "false");
  file.ignore_merges = flag(model, "ignore_merges");
  const Json& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) return damaged(where + ".vocab", "not an object of token ids");
  for (const auto& [token, id] : vocabulary.items()) {
    ASSAY_ASSIGN(const int32_t number, id_of(id, where + ".vocab"));
    file.vocabulary.emplace_back(token, number);
  }
  const Json& merges = member(model, "merges");
  if (!merges.is_array()) return damaged(where + ".merges", "not a list");
  for (const Json& merge : merges) {  // either "left right" or ["left", "right"]
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos) return damaged(where + ".merges", "a merge without a space", text);
      file.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      file.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return damaged(where + ".merges", "not a pair of tokens", merge.dump().substr(0, 100));
    }
  }
  return {};
}

Result<AddedToken> read_added(const Json& token, const Json& id, const std::string& where) {
  AddedToken added;
  ASSAY_ASSIGN(added.id, id_of(id, where));
  added.content = text_of(member(token, "content"));
  if (added.content.empty()) return damaged(where, "an added token without content", token.dump());
  for (const char* name : {"lstrip", "rstrip", "single_word"}) {
    if (flag(token, name)) return unknown_kind(where + ": " + added.content, std::string(name) + " true", "false");
  }
  added.special = flag(token, "special");
  added.normalized = flag(token, "normalized");
  return added;
}

Result<void> read_config(const Json& config, const std::string& path, TokenizerFile& file) {
  const Json& eos = member(config, "eos_token");
  if (eos.is_string()) file.eos_token = eos.get<std::string>();
  if (eos.is_object()) file.eos_token = text_of(member(eos, "content"));
  const Json& decoder = member(config, "added_tokens_decoder");
  if (decoder.is_null()) return {};
  const std::string where = path + ": added_tokens_decoder";
  if (!decoder.is_object()) return damaged(where, "not an object");
  for (const auto& [key, token] : decoder.items()) {
    ASSAY_ASSIGN(AddedToken added, read_added(token, Json::parse(key, nullptr, false), where));
    const auto same = std::find_if(file.added.begin(), file.added.end(), [&](const AddedToken& other) {
      return other.id == added.id || other.content == added.content;
    });
    if (same == file.added.end()) {
      file.added.push_back(std::move(added));
    } else if (same->id != added.id || same->content != added.content) {
      return damaged(where, "contradicts tokenizer.json", fmt::format("{} = {}", added.id, added.content),
                     fmt::format("{} = {}", same->id, same->content));
    }
  }
  return {};
}

}  // namespace

Result<TokenizerFile> read_tokenizer_file(const std::string& model_directory) {
  TokenizerFile file;
  const std::string path = model_directory + "/tokenizer.json";
  ASSAY_ASSIGN(const Json json, read_json(path));
  ASSAY_TRY(read_pipeline(json, path, file));
  ASSAY_TRY(read_model(member(json, "model"), path, file));
  const Json& added = member(json, "added_tokens");
  if (!added.is_null() && !added.is_array()) return damaged(path + ": added_tokens", "not a list");
  for (const Json& token : added) {
    ASSAY_ASSIGN(AddedToken one, read_added(token, member(token, "id"), path + ": added_tokens"));
    file.added.push_back(std::move(one));
  }
  const std::string config_path = model_directory + "/tokenizer_config.json";
  if (std::filesystem::exists(config_path)) {
    ASSAY_ASSIGN(const Json config, read_json(config_path));
    ASSAY_TRY(read_config(config, config_path, file));
  }
  return file;
}

}  // namespace assay::text
