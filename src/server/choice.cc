#include "server/choice.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace assay::server {

Choice::Choice(ChoiceSettings settings)
    : settings_(std::move(settings)),
      detokenizer_(*settings_.tokenizer, settings_.options->skip_special_tokens),
      stop_matcher_(settings_.options->stop) {
  if (settings_.rendered_prompt) {
    reasoning_parser_.emplace(text::ReasoningParser::for_prompt(*settings_.rendered_prompt));
    settings_.rendered_prompt.emplace();
  }
  if (settings_.tools) tool_parser_.emplace(settings_.tools);
  if (!settings_.forced_text.empty()) add(tool_parser_->push(settings_.forced_text));
}

void Choice::take(const ops::SampleResult& result) {
  const int32_t token = result.token;
  tokens_.push_back(token);
  logprob_sum_ += result.logprob;
  if (settings_.keep_results) results_.push_back(result);
  const GenerationOptions& options = *settings_.options;
  const auto& stops = settings_.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    const auto& wanted = options.stop_token_ids;
    if (std::find(wanted.begin(), wanted.end(), token) == wanted.end()) return;
    stop_token_ = token;
    if (options.include_stop_str_in_output) show(text::repair_utf8(settings_.tokenizer->token_bytes(token)));
    return;
  }
  show(detokenizer_.push(token));
  if (reasoning_parser_ && reasoning_parser_->in_reasoning()) ++reasoning_tokens_;
}

// Stop strings do not count before min_tokens.
void Choice::show(const std::string& text) {
  const GenerationOptions& options = *settings_.options;
  if (static_cast<int32_t>(tokens_.size()) <= options.min_tokens) return pass_on(text);
  text::StopMatcher::Out out = stop_matcher_.push(text);
  matched_stop_ = out.matched;
  if (matched_stop_ >= 0 && options.include_stop_str_in_output) out.text += options.stop[matched_stop_];
  pass_on(out.text);
}

void Choice::pass_on(const std::string& text) {
  if (!reasoning_parser_) return read_content(text);
  text::TextDelta delta = reasoning_parser_->push(text);
  delta_.reasoning += delta.reasoning;
  read_content(delta.content);
}

void Choice::read_content(const std::string& text) {
  if (!tool_parser_) {
    delta_.content += text;
  } else if (!call_ended_) {
    add(tool_parser_->push(text));
    call_ended_ = settings_.one_call && tool_parser_->complete_calls() > 0;
  }
}

void Choice::add(text::ToolDelta delta) {
  delta_.content += delta.content;
  for (text::ToolCallDelta& call : delta.calls) {
    if (!settings_.one_call || call.index == 0) delta_.calls.push_back(std::move(call));
  }
}

ChoiceFinish Choice::finish(bool at_limit) {
  const bool cut = ended();
  if (!cut) show(detokenizer_.finish());
  if (!ended()) pass_on(stop_matcher_.finish());
  if (reasoning_parser_) {
    const text::TextDelta last = reasoning_parser_->finish();
    delta_.reasoning += last.reasoning;
    read_content(last.content);
  }
  if (tool_parser_ && !call_ended_) add(tool_parser_->finish());
  ChoiceFinish finish;
  finish.reason = at_limit && !ended() ? "length" : "stop";
  if (finish.reason == "stop" && tool_parser_ && tool_parser_->calls() > 0 && !settings_.named_call) {
    finish.reason = "tool_calls";
  }
  if (matched_stop_ >= 0) finish.stop_string = settings_.options->stop[matched_stop_];
  finish.stop_token = stop_token_;
  return finish;
}

ChoiceDelta Choice::take_delta() { return std::exchange(delta_, {}); }

double Choice::score() const { return tokens_.empty() ? 0 : logprob_sum_ / static_cast<double>(tokens_.size()); }

}  // namespace assay::server
