#include "server/chat_run.h"

#include "base/log.h"

namespace assay::server {

MaybeError ChatRun::parse(const std::string& body) {
  ASSAY_FIELD(parse_chat_request(body, request_));
  ASSAY_FIELD(check_model_name(context_.options, request_.model));
  auto rendered = model_->chat_template->render(*request_.context);
  if (!rendered.ok()) {
    if (rendered.error().kind == ErrorKind::kInvalidArgument) {
      return invalid_field("messages", "The chat template refused the messages: " + rendered.error().message());
    }
    log_error("chat template: {}", rendered.error().message());
    return http_error(500, "Internal error");
  }
  rendered_ = std::move(rendered).value();
  if (request_.tool_choice == ToolChoice::kRequired || request_.tool_choice == ToolChoice::kNamed) {
    // A call is made certain by its beginning: the model goes on from there, without reasoning. The text ends where the
    // model's own tokens would, so that none of them has to begin in the middle.
    if (text::ReasoningParser::for_prompt(rendered_).in_reasoning()) rendered_ += "\n</think>\n\n";
    forced_text_ = "<tool_call>\n";
    if (request_.tool_choice == ToolChoice::kNamed) forced_text_ += "<function=" + request_.tool_name + ">\n";
    rendered_ += forced_text_;
  }
  prompts_.push_back(model_->tokenizer->encode(rendered_));
  return {};
}

void ChatRun::add_settings(int32_t, ChoiceSettings& settings) const {
  settings.rendered_prompt = rendered_;
  settings.tools = request_.tools;
  settings.forced_text = forced_text_;
  settings.one_call = !request_.parallel_tool_calls || request_.tool_choice == ToolChoice::kNamed;
  settings.named_call = request_.tool_choice == ToolChoice::kNamed;
}

std::string ChatRun::opening_events() {
  std::string events;
  for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
    ChoiceParts parts;
    parts.index = i;
    if (request_.return_token_ids && i == 0) parts.prompt_token_ids = &prompts_[0];
    events += sse_event(role_chunk(head_, parts));
  }
  return events;
}

std::string ChatRun::choice_events(Slot& slot, int32_t index) {
  const ChoiceDelta delta = slot.text->take_delta();
  if (delta.empty() && !slot.over) return {};
  const LogprobList list = logprob_list(slot.text->results(), slot.text->sent_results, request_.top_logprobs);
  const auto& tokens = slot.text->tokens();
  const std::vector<int32_t> new_tokens(tokens.begin() + static_cast<ptrdiff_t>(slot.text->sent_tokens), tokens.end());
  slot.text->sent_results = slot.text->results().size();
  slot.text->sent_tokens = tokens.size();
  ChoiceParts parts;
  parts.index = index;
  if (!list.tokens.empty()) parts.logprobs = &list;
  if (request_.return_token_ids && !new_tokens.empty()) parts.token_ids = &new_tokens;
  std::string events;
  const auto say = [&](const std::string& chunk) {
    events += sse_event(chunk);
    parts.logprobs = nullptr;  // with the first chunk
    parts.token_ids = nullptr;
  };
  if (!delta.reasoning.empty()) say(reasoning_chunk(head_, delta.reasoning, parts));
  if (!delta.content.empty()) say(content_chunk(head_, delta.content, parts));
  for (const text::ToolCallDelta& call : delta.calls) {
    if (call.starts) say(tool_call_chunk(head_, call.index, "call_" + random_hex(), call.name, parts));
    if (!call.arguments.empty()) say(arguments_chunk(head_, call.index, call.arguments, parts));
  }
  if (slot.over) say(finish_chunk(head_, slot.finish, parts));
  return events;
}

std::string ChatRun::whole_body() {
  std::vector<ChatChoice> choices;
  std::vector<LogprobList> lists;
  lists.reserve(slots_.size());
  for (Slot& slot : slots_) {
    ChoiceDelta all = slot.text->take_delta();
    ChatChoice choice;
    choice.reasoning = std::move(all.reasoning);
    choice.content = std::move(all.content);
    for (const text::ToolCallDelta& call : all.calls) {
      if (call.starts) choice.tool_calls.push_back({"call_" + random_hex(), call.name, ""});
      choice.tool_calls.back().arguments += call.arguments;
    }
    choice.finish = slot.finish;
    choice.parts.index = static_cast<int32_t>(choices.size());
    lists.push_back(logprob_list(slot.text->results(), 0, request_.top_logprobs));
    if (request_.logprobs) choice.parts.logprobs = &lists.back();
    if (request_.return_token_ids) {
      choice.parts.token_ids = &slot.text->tokens();
      choice.parts.prompt_token_ids = &prompts_[0];
    }
    choices.push_back(std::move(choice));
  }
  if (!request_.prompt_logprobs) return completion_body(head_, choices, usage_);
  const LogprobList scored = logprob_list(slots_[0].prompt_results, 0, *request_.prompt_logprobs);
  return completion_body(head_, choices, usage_, &scored);
}

}  // namespace assay::server
