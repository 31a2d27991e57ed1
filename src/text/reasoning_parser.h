// Splits generated text into reasoning and content.
//
// The start state comes from the rendered prompt: one that ends with "<think>" and white space leaves the model inside
// its reasoning; any other starts with content. A "<think>" at the very start of the output is swallowed and opens
// reasoning. "</think>" ends reasoning, and white space right behind it is dropped. "<tool_call>" ends
// reasoning too and stays, as the start of the content. A "</think>" within content is dropped.
// The result does not depend on how the text is cut into pushes.
#pragma once

#include <string>
#include <string_view>

namespace assay::text {

struct TextDelta {
  std::string reasoning;
  std::string content;
};

class ReasoningParser {
 public:
  static ReasoningParser for_prompt(std::string_view rendered_prompt);

  // What is now certain. The start of a possible tag is held back.
  TextDelta push(std::string_view text);

  // The held-back rest, which turned out to be no tag.
  TextDelta finish();

  bool in_reasoning() const { return in_reasoning_; }

 private:
  explicit ReasoningParser(bool in_reasoning) : in_reasoning_(in_reasoning) {}
  bool step_start(bool final);
  bool step_reasoning(bool final, TextDelta& delta);
  bool step_content(bool final, TextDelta& delta);
  TextDelta advance(bool final);

  bool in_reasoning_;
  bool at_start_ = true;   // nothing of the output has been consumed
  bool trimming_ = false;  // right behind "</think>"
  std::string pending_;
};

}  // namespace assay::text
