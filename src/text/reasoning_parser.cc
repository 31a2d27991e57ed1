#include "text/reasoning_parser.h"

#include <algorithm>

namespace assay::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

// Length of the longest end of `text` that begins `tag` without being all of it.
size_t partial_tag(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == tag.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

ReasoningParser ReasoningParser::for_prompt(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kWhiteSpace);
  prompt = last == std::string_view::npos ? std::string_view() : prompt.substr(0, last + 1);
  return ReasoningParser(prompt.ends_with(kOpen));
}

// Each step consumes from pending_ and says whether another step may follow; `final`: no more text will come.

bool ReasoningParser::step_start(bool final) {
  if (!final && pending_.size() < kOpen.size() && kOpen.starts_with(pending_)) return false;
  at_start_ = false;
  if (pending_.starts_with(kOpen)) {
    pending_.erase(0, kOpen.size());
    in_reasoning_ = true;
  }
  return true;
}

bool ReasoningParser::step_reasoning(bool final, TextDelta& delta) {
  const size_t close = pending_.find(kClose), call = pending_.find(kToolCall);
  const size_t tag = std::min(close, call);
  if (tag == std::string::npos) {
    const size_t held = final ? 0 : std::max(partial_tag(pending_, kClose), partial_tag(pending_, kToolCall));
    delta.reasoning.append(pending_, 0, pending_.size() - held);
    pending_.erase(0, pending_.size() - held);
    return false;
  }
  delta.reasoning.append(pending_, 0, tag);
  pending_.erase(0, tag == close ? tag + kClose.size() : tag);
  in_reasoning_ = false;
  trimming_ = tag == close;
  return true;
}

bool ReasoningParser::step_content(bool final, TextDelta& delta) {
  if (trimming_) {
    pending_.erase(0, std::min(pending_.find_first_not_of(kWhiteSpace), pending_.size()));
    if (pending_.empty()) return false;
  }
  const size_t close = pending_.find(kClose);
  const size_t held = final || close != std::string::npos ? 0 : partial_tag(pending_, kClose);
  const size_t shown = close != std::string::npos ? close : pending_.size() - held;
  delta.content.append(pending_, 0, shown);
  if (shown > 0) trimming_ = false;
  pending_.erase(0, close != std::string::npos ? shown + kClose.size() : shown);
  return close != std::string::npos;
}

TextDelta ReasoningParser::advance(bool final) {
  TextDelta delta;
  bool more = true;
  while (more && !pending_.empty()) {
    if (at_start_) {
      more = step_start(final);
    } else {
      more = in_reasoning_ ? step_reasoning(final, delta) : step_content(final, delta);
    }
  }
  return delta;
}

TextDelta ReasoningParser::push(std::string_view text) {
  pending_ += text;
  return advance(false);
}

TextDelta ReasoningParser::finish() { return advance(true); }

}  // namespace assay::text
