// assay bench: tokens per second of one sequence, prompt and answer apart.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/bench_limits.h"
#include "assay/command.h"
#include "assay/session.h"
#include "assay/token_stream.h"
#include "base/clock.h"

namespace assay::app {
namespace {

struct BenchOptions {
  CommonOptions common;
  int32_t prompt_tokens = 512;
  int32_t decode_tokens = 128;
  int32_t repeats = 3;
  bool json = false;
};

struct Speeds {
  double prefill = 0;  // prompt tokens until the first token is there, per second
  double decode = 0;   // tokens after the first, per second
};

// Ids scattered over the vocabulary: every expert and many embedding rows are touched.
std::vector<int32_t> scattered_prompt(int32_t count, int32_t vocabulary) {
  std::vector<int32_t> ids;
  uint32_t state = 1;
  for (int32_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocabulary)));
  }
  return ids;
}

int32_t vocabulary(const Session& session) {
  return session.tokenizer ? session.tokenizer->vocabulary_size() : session.engine->limits().vocab_size;
}

Result<Speeds> measure(Session& session, const BenchOptions& options) {
  scheduler::Request request;
  request.prompt = scattered_prompt(options.prompt_tokens, vocabulary(session));
  request.max_tokens = options.decode_tokens + 1;
  auto stream = std::make_shared<TokenStream>();
  constexpr int64_t kSecondUs = 1'000'000;
  const int64_t begin_us = now_us();
  ASSAY_ASSIGN([[maybe_unused]] const uint64_t id, session.loop->submit(std::move(request), stream));
  int64_t first_us = 0;
  int64_t last_us = 0;
  ops::SampleResult token;
  for (auto next = stream->next(token, kSecondUs); next != TokenStream::Next::kFinished;
       next = stream->next(token, kSecondUs)) {
    if (next != TokenStream::Next::kToken) continue;
    last_us = now_us();
    if (first_us == 0) first_us = last_us;
  }
  const scheduler::FinishEvent& finish = stream->finish();
  if (finish.generated_tokens != options.decode_tokens + 1) {
    return Error{ErrorKind::kNumerical,
                 "the run ended early",
                 "",
                 std::string(finish_reason_name(finish.reason)),
                 fmt::format("{} tokens", options.decode_tokens + 1),
                 ""};
  }
  return Speeds{options.prompt_tokens * 1e6 / static_cast<double>(first_us - begin_us),
                options.decode_tokens * 1e6 / static_cast<double>(last_us - first_us)};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<void> run(const BenchOptions& options) {
  if (options.common.model_directory.empty()) {
    return Error{ErrorKind::kInvalidArgument, "no model directory given", "", "", "", "or `assay bench limits`"};
  }
  ASSAY_ASSIGN(Session session, open_session(options.common, 1));
  ASSAY_ASSIGN([[maybe_unused]] const Speeds warm_up, measure(session, options));
  std::vector<double> prefill, decode;
  for (int32_t i = 0; i < options.repeats; ++i) {
    ASSAY_ASSIGN(const Speeds speeds, measure(session, options));
    prefill.push_back(speeds.prefill);
    decode.push_back(speeds.decode);
  }
  const engine::ModelSummary& summary = session.engine->summary();
  if (options.json) {
    const nlohmann::ordered_json out{{"prefill_tokens_per_s", median(prefill)},
                                     {"decode_tokens_per_s", median(decode)},
                                     {"threads", summary.threads},
                                     {"machine", summary.device},
                                     {"prompt_tokens", options.prompt_tokens},
                                     {"decode_tokens", options.decode_tokens},
                                     {"repeats", options.repeats}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{}, {} threads; one sequence, median of {} runs after a warm-up\n", summary.device, summary.threads,
               options.repeats);
    fmt::print("prefill  {:>10.1f} tokens/s over {} tokens\n", median(prefill), options.prompt_tokens);
    fmt::print("decode   {:>10.1f} tokens/s over {} tokens\n", median(decode), options.decode_tokens);
  }
  return {};
}

}  // namespace

Command add_bench(CLI::App& parent) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = parent.add_subcommand("bench", "Measure prefill and decode tokens per second of one sequence");
  add_common_options(*app, options->common);
  app->get_option("model")->required(false);  // limits needs none
  const Command limits = add_bench_limits(*app);
  options->common.needs_tokenizer = false;
  constexpr int kMost = 1 << 24;
  add_option(*app, "--prompt-tokens", options->prompt_tokens, "Tokens of the prompt")
      ->check(CLI::Range(1, kMost))
      ->capture_default_str();
  add_option(*app, "--decode-tokens", options->decode_tokens, "Tokens to generate after the first")
      ->check(CLI::Range(1, kMost))
      ->capture_default_str();
  add_option(*app, "--repeats", options->repeats, "Runs to take the median of, after a warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_flag(*app, "--json", options->json,
           "Print one object: prefill_tokens_per_s, decode_tokens_per_s, threads, machine");
  return {app, [options, limits] { return limits.app->parsed() ? limits.run() : run(*options); }};
}

}  // namespace assay::app
