// Tool calls out of generated text, in the form that Qwen's coder models and Qwen3.5 write:
//
//   <tool_call>
//   <function=NAME>
//   <parameter=KEY>
//   VALUE
//   </parameter>
//   </function>
//   </tool_call>
//
// Text outside calls is content; white space alone before the first call, between calls and after the last is dropped.
// One line feed at either end of a value is not part of it. Arguments become one JSON object, each value of the kind
// that the tool's JSON schema gives it: strings as they are; numbers, booleans, objects, arrays and null when the text
// is one, else a string. A parameter without a schema is a string.
//
// Tolerated: spaces around NAME and KEY; a value that ends at a line which starts with <parameter=, </function> or
// </tool_call>; a call that ends at </tool_call>, at the next call or at the end of the text; several functions in one
// <tool_call>; a line that starts with <function=NAME> of a known tool outside <tool_call>.
// Never lost: what follows <tool_call> and is no function is content, tag included; so is text between parameters.
//
// The result does not depend on how the text is cut into pushes of whole characters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay::text {

// Which kinds each parameter of each tool may have. Immutable.
class ToolSchemas {
 public:
  enum Kind : uint32_t { kString = 1, kInteger = 2, kNumber = 4, kBoolean = 8, kObject = 16, kArray = 32, kNull = 64 };

  // `tools` as in a chat request: [{"type": "function", "function": {"name", "parameters": {"properties": ..}}}].
  // Members of other shapes count as left out.
  explicit ToolSchemas(const nlohmann::ordered_json& tools);

  bool has(std::string_view tool) const { return kinds_.find(tool) != kinds_.end(); }
  // A set of Kind; kString where nothing is known.
  uint32_t kinds(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, uint32_t, std::less<>>, std::less<>> kinds_;
};

// A call's first delta starts it; fragments of arguments put together are one JSON object, also when the text ended
// early.
struct ToolCallDelta {
  int32_t index = 0;  // of the call
  bool starts = false;
  std::string name;  // of a delta that starts a call
  std::string arguments;
};

struct ToolDelta {
  std::string content;
  std::vector<ToolCallDelta> calls;
};

class ToolCallParser {
 public:
  explicit ToolCallParser(std::shared_ptr<const ToolSchemas> schemas) : schemas_(std::move(schemas)) {}

  // What is now certain.
  ToolDelta push(std::string_view text);
  // The rest; a call that is still open is closed.
  ToolDelta finish();

  int32_t calls() const { return calls_; }              // begun
  int32_t complete_calls() const { return complete_; }  // ended

 private:
  enum class State : uint8_t {
    kContent,
    kOpen,   // behind <tool_call>, or before <function=
    kBody,   // in a function, between parameters
    kValue,  // in a parameter
    kAfter,  // behind </function>
  };
  bool step(bool final, ToolDelta& delta);
  bool step_content(bool final, ToolDelta& delta);
  bool step_open(bool final, ToolDelta& delta);
  bool step_body(bool final, ToolDelta& delta);
  bool step_value(bool final, ToolDelta& delta);
  bool step_after(bool final, ToolDelta& delta);

  void emit_content(std::string_view text, ToolDelta& delta);
  void emit_arguments(std::string_view text, ToolDelta& delta);
  void begin_call(std::string_view name, ToolDelta& delta);
  void begin_value(std::string_view key, ToolDelta& delta);
  void add_value(std::string_view text, ToolDelta& delta);
  void end_value(ToolDelta& delta);
  void end_call(State next, ToolDelta& delta);
  size_t value_end(bool final, size_t& held) const;

  std::shared_ptr<const ToolSchemas> schemas_;
  State state_ = State::kContent;
  std::string pending_;
  std::string opening_;        // kOpen: the tag that led there, or nothing
  bool fresh_ = true;          // only white space since the start or the last call
  bool at_line_start_ = true;  // of the content
  std::string space_;          // that white space
  int32_t calls_ = 0;
  int32_t complete_ = 0;

  std::string name_;  // of the open call
  bool has_argument_ = false;
  bool in_stray_text_ = false;  // kBody: text that is no tag came last
  std::string key_;             // of the open parameter
  uint32_t kinds_ = 0;
  bool value_begun_ = false;  // its first line feed is dealt with
  bool value_empty_ = true;   // nothing of it has been taken from pending_
  std::string value_;         // of kinds that are judged whole
};

}  // namespace assay::text
