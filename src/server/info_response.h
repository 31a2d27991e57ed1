// The small JSON bodies that are not completions. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/server_options.h"

namespace assay::server {

// GET /v1/models: the model under each of its names.
std::string models_body(const ServerOptions& options, int64_t created, int32_t context_tokens);
// GET /v1/models/{name}; `name` is one of the model's.
std::string model_body(const ServerOptions& options, std::string_view name, int64_t created, int32_t context_tokens);

// {"status": status}
std::string status_body(std::string_view status);

// GET /
std::string root_body(const ServerOptions& options, const std::vector<std::string>& endpoints);

}  // namespace assay::server
