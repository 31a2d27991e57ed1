// One choice of an answer: from tokens to text, reasoning and tool calls. Pure computation; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/sample/sample.h"
#include "server/generation_options.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/stop_matcher.h"
#include "text/tool_call_parser.h"

namespace assay::server {

struct ChoiceDelta {
  std::string reasoning;
  std::string content;
  std::vector<text::ToolCallDelta> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

struct ChoiceFinish {
  std::string reason;                      // stop, length or tool_calls
  std::optional<std::string> stop_string;  // the one that matched
  std::optional<int32_t> stop_token;       // of the request's stop_token_ids
};

struct ChoiceSettings {
  const text::Tokenizer* tokenizer = nullptr;
  const GenerationOptions* options = nullptr;
  std::vector<int32_t> stop_tokens;  // end the choice in the engine
  bool keep_results = false;         // the log-probabilities are asked for

  // Chat only.
  std::optional<std::string> rendered_prompt;  // decides whether the answer starts in reasoning
  std::shared_ptr<const text::ToolSchemas> tools;
  std::string forced_text;  // the part of the prompt that belongs to the answer's first tool call
  bool one_call = false;    // the choice ends with its first tool call
  bool named_call = false;  // the caller chose the function: its call ends with the reason stop
};

// Everything it refers to must outlive it.
class Choice {
 public:
  explicit Choice(ChoiceSettings settings);

  void take(const ops::SampleResult& result);
  // A stop string or the only tool call allowed is complete: no more tokens are wanted.
  bool ended() const { return matched_stop_ >= 0 || call_ended_; }
  // What is held back comes out. at_limit: the engine ended it for its length.
  ChoiceFinish finish(bool at_limit);

  // What came since the last call.
  ChoiceDelta take_delta();

  const std::vector<ops::SampleResult>& results() const { return results_; }  // when kept
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t reasoning_tokens() const { return reasoning_tokens_; }
  // Mean log-probability of the tokens, for best_of.
  double score() const;

  // How far a stream has sent results and tokens.
  size_t sent_results = 0;
  size_t sent_tokens = 0;

 private:
  void show(const std::string& text);
  void pass_on(const std::string& text);
  void read_content(const std::string& text);
  void add(text::ToolDelta delta);

  ChoiceSettings settings_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stop_matcher_;
  std::optional<text::ReasoningParser> reasoning_parser_;
  std::optional<text::ToolCallParser> tool_parser_;
  ChoiceDelta delta_;
  std::vector<ops::SampleResult> results_;
  std::vector<int32_t> tokens_;
  double logprob_sum_ = 0;
  int32_t reasoning_tokens_ = 0;
  int matched_stop_ = -1;
  bool call_ended_ = false;
  std::optional<int32_t> stop_token_;
};

}  // namespace assay::server
