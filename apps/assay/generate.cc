// assay generate: one prompt, one answer.
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/chat_prompt.h"
#include "assay/command.h"
#include "assay/sampling_options.h"
#include "assay/session.h"
#include "assay/token_stream.h"
#include "text/detokenizer.h"

namespace assay::app {
namespace {

using nlohmann::ordered_json;

struct GenerateOptions {
  CommonOptions common;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  bool chat = false;
  std::string thinking = "default";
  bool json = false;
};

Result<std::string> prompt_text(const GenerateOptions& options) {
  std::string text = options.prompt;
  if (!options.prompt_file.empty()) {
    ASSAY_ASSIGN(text, read_input(options.prompt_file));
  }
  if (!options.chat) return text;
  ASSAY_ASSIGN(const auto chat_template, text::ChatTemplate::load(options.common.model_directory));
  const auto messages = ordered_json::array({{{"role", "user"}, {"content", text}}});
  return render_chat(*chat_template, messages, nullptr, parse_thinking(options.thinking));
}

void print_json(const Session& session, const std::vector<int32_t>& prompt,
                const std::vector<ops::SampleResult>& tokens, const scheduler::FinishEvent& finish) {
  std::vector<int32_t> ids;
  std::vector<double> logprobs;
  for (const ops::SampleResult& token : tokens) {
    ids.push_back(token.token);
    logprobs.push_back(token.logprob);
  }
  ordered_json out;
  out["prompt_ids"] = prompt;
  out["ids"] = ids;
  out["text"] = session.decode(ids, true);
  out["logprobs"] = logprobs;
  out["finish_reason"] = scheduler::finish_reason_name(finish.reason);
  fmt::print("{}\n", out.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

void print_text(const Session& session, TokenStream& stream) {
  text::Detokenizer detokenizer(*session.tokenizer, true);
  const auto show = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  constexpr int64_t kSecondUs = 1'000'000;
  ops::SampleResult token;
  for (auto next = stream.next(token, kSecondUs); next != TokenStream::Next::kFinished;
       next = stream.next(token, kSecondUs)) {
    if (next == TokenStream::Next::kToken && !session.is_stop(token.token)) show(detokenizer.push(token.token));
  }
  show(detokenizer.finish() + "\n");
}

Result<void> run(const GenerateOptions& options) {
  ASSAY_ASSIGN(Session session, open_session(options.common, 1));
  ASSAY_ASSIGN(const std::string text, prompt_text(options));
  scheduler::Request request;
  request.prompt = session.tokenizer->encode(text);
  request.stop_tokens = session.stop_tokens;
  apply_sampling(options.sampling, session.generation, request);
  const std::vector<int32_t> prompt = request.prompt;
  auto stream = std::make_shared<TokenStream>();
  ASSAY_ASSIGN([[maybe_unused]] const uint64_t id, session.loop->submit(std::move(request), stream));
  if (options.json) {
    const std::vector<ops::SampleResult> tokens = stream->wait();
    print_json(session, prompt, tokens, stream->finish());
  } else {
    print_text(session, *stream);
  }
  if (stream->finish().reason == scheduler::FinishReason::kNumericalError) {
    return Error{ErrorKind::kNumerical, "the model's logits were not finite", "", "", "", ""};
  }
  return {};
}

}  // namespace

Command add_generate(CLI::App& parent) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_tokens = 256;
  CLI::App& app = add_subcommand(parent, "generate", "Continue a prompt, or answer it with --chat");
  add_common_options(app, options->common);
  Option prompt = add_option(app, "--prompt", options->prompt, "Text to continue");
  const Option file = add_option(app, "--prompt-file", options->prompt_file, "File with the text; -: standard input");
  prompt.excludes(file);
  add_flag(app, "--chat", options->chat, "Put the prompt into the chat template as the user's message");
  add_thinking(app, options->thinking);
  add_sampling_options(app, options->sampling);
  add_flag(app, "--json", options->json,
           "Print one object: prompt_ids, ids, text, logprobs (natural, before temperature), finish_reason");
  require_one(app, "--prompt or --prompt-file", {prompt, file});
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app
