// One request for completions: some prompts, some choices of each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/completion_request.h"
#include "server/completion_response.h"
#include "server/generation_run.h"

namespace assay::server {

class CompletionRun : public GenerationRun {
 public:
  CompletionRun(RunContext& context, std::shared_ptr<const Model> model, std::shared_ptr<ResponseWriter> writer)
      : GenerationRun(context, std::move(model), std::move(writer), "cmpl-") {}

 protected:
  MaybeError parse(const std::string& body) override;
  const GenerationOptions& options() const override { return request_; }
  int32_t choices_per_prompt() const override { return request_.best_of; }
  // With echo every choice shows the prompt's log-probabilities, and may be the first to have them.
  bool scores_prompt(int32_t choice) const override {
    return (request_.echo && request_.logprobs) || (choice == 0 && request_.prompt_logprobs.has_value());
  }
  std::string opening_events() override { return {}; }
  std::string choice_events(Slot& slot, int32_t index) override;
  std::string usage_event() const override { return text_usage_chunk(head_, usage_); }
  std::string whole_body() override;

 private:
  TextLogprobs text_logprobs(const std::vector<ops::SampleResult>& results, size_t first, int32_t offset) const;
  std::vector<int32_t> best_choices(int32_t prompt) const;

  CompletionRequest request_;
  std::vector<std::string> echoes_;  // by prompt
  std::vector<int32_t> offsets_;     // of streams: characters sent, by slot; -1: nothing yet
};

}  // namespace assay::server
