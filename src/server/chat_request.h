// The body of POST /v1/chat/completions, validated and bounded. A pure function of bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "server/generation_options.h"
#include "text/tool_call_parser.h"

namespace assay::server {

enum class ToolChoice : uint8_t {
  kNone,      // no tools, or none to be called: the template does not see them, and nothing is parsed
  kAuto,      // the model decides
  kRequired,  // the answer is made to begin with a call
  kNamed,     // the answer is made to begin with a call of tool_name
};

struct ChatRequest : GenerationOptions {
  // The template's context: messages, tools if any, add_generation_prompt, and the members of chat_template_kwargs.
  std::shared_ptr<const nlohmann::ordered_json> context;
  std::shared_ptr<const text::ToolSchemas> tools;  // null: kNone
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string tool_name;            // of kNamed
  bool parallel_tool_calls = true;  // false: the answer ends with its first call
};

// Fills `request`, or says why it cannot: a 400 that names the field. An optional field that is null counts as left
// out. The role "developer" becomes "system". max_completion_tokens wins over max_tokens. Depth and members of the JSON
// are bounded before it is parsed.
MaybeError parse_chat_request(std::string_view text, ChatRequest& request);

// The template's context alone: messages, tools, add_generation_prompt and chat_template_kwargs of a parsed body.
MaybeError read_chat_context(const nlohmann::ordered_json& body, nlohmann::ordered_json& context);

}  // namespace assay::server
