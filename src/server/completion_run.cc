#include "server/completion_run.h"

#include <algorithm>
#include <deque>
#include <numeric>

namespace assay::server {

namespace {

std::string decode(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  text::Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

}  // namespace

MaybeError CompletionRun::parse(const std::string& body) {
  ASSAY_FIELD(parse_completion_request(body, request_));
  ASSAY_FIELD(check_model_name(context_.options, request_.model));
  for (const auto& prompt : request_.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prompts_.push_back(text ? model_->tokenizer->encode(*text) : std::get<std::vector<int32_t>>(prompt));
    if (request_.echo) echoes_.push_back(text ? *text : decode(*model_->tokenizer, prompts_.back()));
  }
  offsets_.assign(prompts_.size() * static_cast<size_t>(request_.best_of), -1);
  return {};
}

TextLogprobs CompletionRun::text_logprobs(const std::vector<ops::SampleResult>& results, size_t first,
                                          int32_t offset) const {
  TextLogprobs logprobs;
  logprobs.list = logprob_list(results, first, request_.top_logprobs);
  logprobs.offset = offset;
  logprobs.is_shown = [this](int32_t id) {
    return !(request_.skip_special_tokens && model_->tokenizer->is_special(id));
  };
  return logprobs;
}

std::string CompletionRun::choice_events(Slot& slot, int32_t index) {
  const ChoiceDelta delta = slot.text->take_delta();
  int32_t& offset = offsets_[static_cast<size_t>(index)];
  const bool opens = offset < 0;
  if (opens) offset = 0;
  if (delta.empty() && !slot.over && !opens) return {};
  const auto prompt = static_cast<size_t>(slot.prompt);
  std::string events;
  if (opens && (request_.echo || request_.return_token_ids)) {
    TextChoice echo;
    echo.parts.index = index;
    if (request_.return_token_ids) echo.parts.prompt_token_ids = &prompts_[prompt];
    TextLogprobs scored = text_logprobs(slot.prompt_results, 0, 0);
    scored.first_token = prompts_[prompt][0];
    scored.echoed = prompts_[prompt].size();
    if (request_.echo) echo.text = echoes_[prompt];
    if (request_.echo && request_.logprobs) {
      echo.logprobs = &scored;
      offset = text_length(scored);
    }
    events += sse_event(text_chunk(head_, echo));
  }
  const TextLogprobs logprobs = text_logprobs(slot.text->results(), slot.text->sent_results, offset);
  const auto& tokens = slot.text->tokens();
  const std::vector<int32_t> new_tokens(tokens.begin() + static_cast<ptrdiff_t>(slot.text->sent_tokens), tokens.end());
  TextChoice chunk;
  chunk.parts.index = index;
  if (request_.return_token_ids) chunk.parts.token_ids = &new_tokens;
  chunk.text = delta.content;
  if (!logprobs.list.tokens.empty()) chunk.logprobs = &logprobs;
  if (slot.over) chunk.finish = slot.finish;
  if (delta.empty() && !slot.over) return events;
  offset += text_length(logprobs);
  slot.text->sent_results = slot.text->results().size();
  slot.text->sent_tokens = tokens.size();
  return events + sse_event(text_chunk(head_, chunk));
}

// The slots of a prompt that are returned: the n with the highest mean log-probability, in order of arrival.
std::vector<int32_t> CompletionRun::best_choices(int32_t prompt) const {
  std::vector<int32_t> slots(static_cast<size_t>(request_.best_of));
  std::iota(slots.begin(), slots.end(), prompt * request_.best_of);
  std::stable_sort(slots.begin(), slots.end(), [this](int32_t a, int32_t b) {
    return slots_[static_cast<size_t>(a)].text->score() > slots_[static_cast<size_t>(b)].text->score();
  });
  slots.resize(static_cast<size_t>(request_.n));
  if (request_.best_of == request_.n) std::sort(slots.begin(), slots.end());
  return slots;
}

std::string CompletionRun::whole_body() {
  std::vector<TextChoice> choices;
  std::deque<TextLogprobs> lists;
  std::deque<LogprobList> scored;
  std::deque<std::vector<ops::SampleResult>> joined;
  for (int32_t prompt = 0; prompt < static_cast<int32_t>(prompts_.size()); ++prompt) {
    const std::vector<int32_t>& ids = prompts_[static_cast<size_t>(prompt)];
    for (const int32_t index : best_choices(prompt)) {
      Slot& slot = slots_[static_cast<size_t>(index)];
      TextChoice choice;
      choice.parts.index = static_cast<int32_t>(choices.size());
      choice.finish = slot.finish;
      choice.text = (request_.echo ? echoes_[static_cast<size_t>(prompt)] : "") + slot.text->take_delta().content;
      if (request_.logprobs) {
        std::vector<ops::SampleResult>& all = joined.emplace_back();
        if (request_.echo) all = slot.prompt_results;
        all.insert(all.end(), slot.text->results().begin(), slot.text->results().end());
        lists.push_back(text_logprobs(all, 0, 0));
        if (request_.echo) lists.back().first_token = ids[0];
        if (request_.echo) lists.back().echoed = ids.size();
        choice.logprobs = &lists.back();
      }
      if (request_.prompt_logprobs) {
        const Slot& first = slots_[static_cast<size_t>(prompt * request_.best_of)];
        scored.push_back(logprob_list(first.prompt_results, 0, *request_.prompt_logprobs));
        choice.prompt_logprobs = &scored.back();
      }
      if (request_.return_token_ids) {
        choice.parts.token_ids = &slot.text->tokens();
        choice.parts.prompt_token_ids = &ids;
      }
      choices.push_back(std::move(choice));
    }
  }
  return text_body(head_, choices, usage_);
}

}  // namespace assay::server
