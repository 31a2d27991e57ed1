#include "server/info_response.h"

#include <nlohmann/json.hpp>

namespace assay::server {

using Json = nlohmann::ordered_json;

namespace {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json model_json(const ServerOptions& options, std::string_view name, int64_t created, int32_t context_tokens) {
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "assay";
  json["root"] = options.model_root.empty() ? options.model_id : options.model_root;
  json["parent"] = nullptr;
  json["max_model_len"] = context_tokens;
  json["meta"] = {{"n_ctx", context_tokens}};
  return json;
}

}  // namespace

std::string models_body(const ServerOptions& options, int64_t created, int32_t context_tokens) {
  Json data = Json::array({model_json(options, options.model_id, created, context_tokens)});
  for (const std::string& alias : options.aliases) data.push_back(model_json(options, alias, created, context_tokens));
  Json json;
  json["object"] = "list";
  json["data"] = std::move(data);
  return dump(json);
}

std::string model_body(const ServerOptions& options, std::string_view name, int64_t created, int32_t context_tokens) {
  return dump(model_json(options, name, created, context_tokens));
}

std::string status_body(std::string_view status) {
  Json json;
  json["status"] = status;
  return dump(json);
}

std::string root_body(const ServerOptions& options, const std::vector<std::string>& endpoints) {
  Json json;
  json["name"] = "assay";
  json["version"] = options.version;
  json["model"] = options.model_id;
  json["endpoints"] = endpoints;
  return dump(json);
}

}  // namespace assay::server
