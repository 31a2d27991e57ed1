// Endpoints that only handle text: /tokenize, /detokenize and /apply-template. Pure functions of body and model; they
// run on the text pool.
#pragma once

#include <string>
#include <string_view>

#include "server/http_server.h"
#include "server/json_fields.h"
#include "server/model.h"
#include "server/server_options.h"

namespace assay::server {

// {"prompt": text} (or "content"), or {"messages": [...]} with the template's fields as in chat completions
//   -> {"count", "max_model_len", "tokens": [ids], "token_strs": [texts] with "return_token_strs" or null}
MaybeError tokenize(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply);

// {"tokens": [ids]} -> {"prompt": text, "content": text}; special tokens are kept.
MaybeError detokenize(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply);

// {"messages": [...]} with the template's fields -> {"prompt": text}
MaybeError apply_template(std::string_view text, const Model& model, const ServerOptions& options, std::string& reply);

}  // namespace assay::server
