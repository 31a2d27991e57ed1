#include "assay/chat_prompt.h"

#include <nlohmann/json.hpp>

#include "assay/common_options.h"

namespace assay::app {

Option add_thinking(CLI::App& app, std::string& thinking) {
  return add_option(app, "--thinking", thinking,
                    "Reason before answering: on, off, or default (what the template does)")
      .one_of({"on", "off", "default"})
      .show_default();
}

Thinking parse_thinking(const std::string& text) {
  if (text == "on") return Thinking::kOn;
  return text == "off" ? Thinking::kOff : Thinking::kDefault;
}

Result<std::string> render_chat(const text::ChatTemplate& chat_template, const nlohmann::ordered_json& messages,
                                const nlohmann::ordered_json& tools, Thinking thinking) {
  nlohmann::ordered_json context;
  context["messages"] = messages;
  if (!tools.is_null()) context["tools"] = tools;
  context["add_generation_prompt"] = true;
  if (thinking != Thinking::kDefault) context["enable_thinking"] = thinking == Thinking::kOn;
  return chat_template.render(context);
}

}  // namespace assay::app
