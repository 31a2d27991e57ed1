// assay perplexity: how likely the model finds a text, every token given those before it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/command.h"
#include "assay/session.h"
#include "assay/token_stream.h"

namespace assay::app {
namespace {

struct PerplexityOptions {
  CommonOptions common;
  std::string file;
  int32_t window = 0;
  bool json = false;
};

// Texts longer than a window are cut into windows side by side; the first token of each is context only.
Result<std::vector<std::shared_ptr<TokenStream>>> submit_windows(Session& session, const std::vector<int32_t>& ids,
                                                                 int32_t window) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (size_t begin = 0; begin < ids.size(); begin += window) {
    const size_t end = std::min(ids.size(), begin + window);
    if (end - begin < 2) break;
    scheduler::Request request;
    request.prompt.assign(ids.begin() + begin, ids.begin() + end);
    request.prompt_logprobs = true;
    request.score_only = true;
    streams.push_back(std::make_shared<TokenStream>());
    ASSAY_ASSIGN([[maybe_unused]] const uint64_t id, session.loop->submit(std::move(request), streams.back()));
  }
  return streams;
}

Result<void> run(const PerplexityOptions& options) {
  ASSAY_ASSIGN(const std::string text, read_input(options.file));
  ASSAY_ASSIGN(Session session, open_session(options.common, std::numeric_limits<int32_t>::max()));
  const std::vector<int32_t> ids = session.tokenizer->encode(text);
  const int32_t largest = session.loop->limits().context_tokens;
  const int32_t window = options.window > 0 ? std::min(options.window, largest) : largest;
  ASSAY_ASSIGN(const auto streams, submit_windows(session, ids, window));
  int64_t tokens = 0;
  double nll = 0;
  for (const auto& stream : streams) {
    stream->wait();
    if (stream->finish().reason == scheduler::FinishReason::kNumericalError) {
      return Error{ErrorKind::kNumerical, "the model's logits were not finite", options.file, "", "", ""};
    }
    for (const ops::SampleResult& result : stream->prompt_logprobs()) nll -= result.logprob;
    tokens += static_cast<int64_t>(stream->prompt_logprobs().size());
  }
  if (tokens == 0) {
    return Error{ErrorKind::kInvalidArgument,
                 "the text is too short to score",
                 options.file,
                 fmt::format("{} tokens", ids.size()),
                 "at least 2",
                 ""};
  }
  const double mean = nll / static_cast<double>(tokens);
  if (options.json) {
    const nlohmann::ordered_json out{{"tokens", tokens},
                                     {"mean_nll", mean},
                                     {"perplexity", std::exp(mean)},
                                     {"windows", streams.size()},
                                     {"window_tokens", window}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("tokens scored  {}\nmean NLL       {:.6f} nats\nperplexity     {:.4f}\n", tokens, mean, std::exp(mean));
  }
  return {};
}

}  // namespace

Command add_perplexity(CLI::App& parent) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App& app = add_subcommand(parent, "perplexity", "Mean negative log-likelihood of a text, teacher forced");
  add_common_options(app, options->common);
  add_option(app, "--file", options->file, "The text; -: standard input").required();
  add_option(app, "--window", options->window, "Tokens of a window; 0: as many as the context holds")
      .range(0, std::numeric_limits<int32_t>::max())
      .check([](const std::string& text) { return text == "1" ? "at least 2 tokens" : ""; }, "")
      .show_default();
  add_flag(app, "--json", options->json, "Print one object: tokens, mean_nll, perplexity, windows, window_tokens");
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app
