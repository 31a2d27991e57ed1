#include "text/reasoning_parser.h"

#include <gtest/gtest.h>

namespace assay::text {
namespace {

constexpr std::string_view kThinking = "<|im_start|>assistant\n<think>\n";
constexpr std::string_view kNotThinking = "<|im_start|>assistant\n<think>\n\n</think>\n\n";

std::pair<std::string, std::string> run(std::string_view prompt, std::string_view text, size_t a, size_t b) {
  ReasoningParser parser = ReasoningParser::for_prompt(prompt);
  TextDelta all;
  const auto add = [&](const TextDelta& delta) {
    all.reasoning += delta.reasoning;
    all.content += delta.content;
  };
  add(parser.push(text.substr(0, a)));
  add(parser.push(text.substr(a, b - a)));
  add(parser.push(text.substr(b)));
  add(parser.finish());
  return {all.reasoning, all.content};
}

struct Case {
  std::string_view prompt;
  std::string text, reasoning, content;
};

const std::vector<Case> kCases = {
    {kThinking, "", "", ""},
    {kThinking, "Let me see.\n</think>\n\nIt is 4.", "Let me see.\n", "It is 4."},
    {kThinking, "cut off in the mid", "cut off in the mid", ""},
    {kThinking, "cut off </thi", "cut off </thi", ""},
    {kThinking, "<think>again</think>x", "again", "x"},
    {kThinking, "<thin", "<thin", ""},
    {kThinking, "a<think>b</think>c", "a<think>b", "c"},
    {kThinking, "I call.\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "I call.\n",
     "<tool_call>\n<function=f>\n</function>\n</tool_call>"},
    {kThinking, "r</think> \n<tool_call>x</tool_call>", "r", "<tool_call>x</tool_call>"},
    {kThinking, "r</think>a</think>b", "r", "ab"},
    {kThinking, "r</think>\n</think>\n b  ", "r", "b  "},
    {kThinking, "a < b and </ c <tool </think>d <e </f", "a < b and </ c <tool ", "d <e </f"},
    {kThinking, "<tool_call>x</think> y", "", "<tool_call>x y"},
    {kThinking, "r</think>\n\n", "r", ""},
    {kNotThinking, "plain <b>", "", "plain <b>"},
    {kNotThinking, "\n keeps white space", "", "\n keeps white space"},
    {kNotThinking, "a</think>\nb", "", "a\nb"},
    {kNotThinking, "<think>r</think>\nc", "r", "c"},
    {kNotThinking, "x <think> y", "", "x <think> y"},
    {kNotThinking, "<tool_call>", "", "<tool_call>"},
};

TEST(ReasoningParser, DoesNotDependOnCuts) {
  for (const Case& c : kCases) {
    for (size_t a = 0; a <= c.text.size(); ++a) {
      for (size_t b = a; b <= c.text.size(); ++b) {
        EXPECT_EQ(run(c.prompt, c.text, a, b), std::make_pair(c.reasoning, c.content))
            << c.text << " " << a << " " << b;
      }
    }
  }
}

TEST(ReasoningParser, StartsAsThePromptEnds) {
  for (const char* prompt : {"x<think>\n", "<think>", "<think> \n\n", "</think>\n<think>\n"}) {
    EXPECT_TRUE(ReasoningParser::for_prompt(prompt).in_reasoning()) << prompt;
  }
  for (const char* prompt : {"", "\n", "x", "<think>\n\n</think>\n\n", "<think>\nx", "think>\n"}) {
    EXPECT_FALSE(ReasoningParser::for_prompt(prompt).in_reasoning()) << prompt;
  }
}

TEST(ReasoningParser, EmitsTextAsSoonAsItIsCertain) {
  ReasoningParser parser = ReasoningParser::for_prompt(kThinking);
  EXPECT_EQ(parser.push("abc").reasoning, "abc");
  EXPECT_EQ(parser.push("d</t").reasoning, "d");
  EXPECT_EQ(parser.push("x").reasoning, "</tx");
  EXPECT_EQ(parser.push("</think>").reasoning, "");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.push("\n\nhi").content, "hi");
}

}  // namespace
}  // namespace assay::text
