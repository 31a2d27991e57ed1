// A chat template of any bytes: it parses or not, renders or not, always within its bounds.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz_util.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto context = nlohmann::ordered_json::parse(R"({"messages":[
    {"role":"system","content":"Be brief."},{"role":"user","content":"Hi \u00e4 <b>"},
    {"role":"assistant","content":"Yes","reasoning":"Hm","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},
    {"role":"tool","content":"3"},{"role":"user","content":[{"type":"text","text":"And?"}]}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
    "add_generation_prompt":true,"enable_thinking":false})");
  const auto made = assay::text::ChatTemplate::parse(std::string(assay::fuzz::text_of(data, size)));
  if (!assay::fuzz::accepted(made)) return 0;
  (void)assay::fuzz::accepted((*made)->render(context));
  return 0;
}
