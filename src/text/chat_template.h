// The model's chat template: messages to prompt text, as Hugging Face's apply_chat_template renders it.
//
// Jinja with trim_blocks and lstrip_blocks on, keep_trailing_newline off, loop controls, the generation tag, tojson as
// json.dumps(ensure_ascii=False), raise_exception and strftime_now. A template runs within bounds on work, output
// and nesting (jinja_interpreter.h): a hostile one ends with an error.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace assay::text {

// Immutable once made; render may be called from any thread.
class ChatTemplate {
 public:
  // chat_template.jinja, else "chat_template" of tokenizer_config.json. The special tokens of tokenizer_config.json
  // (bos_token, eos_token, pad_token, unk_token) become variables. kIo: a file cannot be read; kCheckpoint: there is
  // no template, or it does not parse.
  static Result<std::unique_ptr<ChatTemplate>> load(const std::string& model_directory);
  static Result<std::unique_ptr<ChatTemplate>> parse(const std::string& source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // context: an object with messages, tools, add_generation_prompt and any chat_template_kwargs; they become the
  // template's variables. Messages are first cleaned as Hugging Face does: null members are dropped, reasoning or
  // thinking is copied to reasoning_content, and tool_calls[].function.arguments that are JSON text become objects.
  // kInvalidArgument: the template refused (its raise_exception text is `what`), met an undefined value or a bound.
  Result<std::string> render(const nlohmann::ordered_json& context) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace assay::text
