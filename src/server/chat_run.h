// One chat completion.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/chat_request.h"
#include "server/chat_response.h"
#include "server/generation_run.h"

namespace assay::server {

class ChatRun : public GenerationRun {
 public:
  ChatRun(RunContext& context, std::shared_ptr<const Model> model, std::shared_ptr<ResponseWriter> writer)
      : GenerationRun(context, std::move(model), std::move(writer), "chatcmpl-") {
    prompt_field_ = "messages";
  }

 protected:
  MaybeError parse(const std::string& body) override;
  const GenerationOptions& options() const override { return request_; }
  int32_t choices_per_prompt() const override { return request_.n; }
  bool scores_prompt(int32_t choice) const override { return choice == 0 && request_.prompt_logprobs.has_value(); }
  void add_settings(int32_t prompt, ChoiceSettings& settings) const override;
  std::string opening_events() override;
  std::string choice_events(Slot& slot, int32_t index) override;
  std::string usage_event() const override { return usage_chunk(head_, usage_); }
  std::string whole_body() override;

 private:
  ChatRequest request_;
  std::string rendered_;
  std::string forced_text_;  // what of it belongs to the answer
};

}  // namespace assay::server
