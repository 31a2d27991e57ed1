// From messages to the text that the model is given.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "assay/flags.h"
#include "base/result.h"
#include "text/chat_template.h"

namespace assay::app {

enum class Thinking { kDefault, kOn, kOff };

// The flag --thinking, and what its text means.
Option add_thinking(CLI::App& app, std::string& thinking);
Thinking parse_thinking(const std::string& text);

// tools: an array, or null for none.
Result<std::string> render_chat(const text::ChatTemplate& chat_template, const nlohmann::ordered_json& messages,
                                const nlohmann::ordered_json& tools, Thinking thinking);

}  // namespace assay::app
