#include "assay/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <iterator>

#include "base/file.h"
#include "text/detokenizer.h"

namespace assay::app {

std::string Session::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  text::Detokenizer detokenizer(*tokenizer, skip_special);
  std::string text;
  const size_t count = !ids.empty() && is_stop(ids.back()) ? ids.size() - 1 : ids.size();
  for (size_t i = 0; i < count; ++i) text += detokenizer.push(ids[i]);
  return text + detokenizer.finish();
}

bool Session::is_stop(int32_t id) const {
  return std::find(stop_tokens.begin(), stop_tokens.end(), id) != stop_tokens.end();
}

Result<Session> open_session(const CommonOptions& options, int32_t max_queued, const Progress& progress) {
  apply_log_level(options.log_level);
  Session session;
  engine::LoadOptions load = load_options(options);
  if (options.model_directory.ends_with(".json")) {
    if (options.needs_tokenizer) {
      return Error{ErrorKind::kInvalidArgument, "a config alone has no tokenizer",
                   options.model_directory,     "a file",
                   "a model directory",         ""};
    }
  } else {
    ASSAY_ASSIGN(session.tokenizer, text::Tokenizer::load(options.model_directory));
    ASSAY_ASSIGN(session.generation, checkpoint::load_generation_config(options.model_directory));
    load.real_vocab = session.tokenizer->vocabulary_size();
  }
  if (options.proof) {
    load.proof = proof_options(*options.proof, session.tokenizer.get(), child_environment(options, load.real_vocab));
  }
  load.progress = [&progress](const std::string& stage) {
    log_info("{}", stage);
    if (progress) progress(stage);
  };
  ASSAY_ASSIGN(session.engine, engine::load(load));
  const int64_t most_positions = session.engine->config().max_positions;
  if (options.context_length > most_positions) {
    log_warning("context-length {} is more than the {} positions that the model is made for (max_position_embeddings)",
                options.context_length, most_positions);
  }
  if (session.tokenizer) {
    session.stop_tokens = stop_tokens(session.generation, session.engine->config(), *session.tokenizer);
  }
  if (options.explain) fmt::print(stderr, "{}", session.engine->explain());
  const scheduler::LoopOptions loop{.max_queued = max_queued, .max_running = options.max_running_requests};
  session.loop = std::make_unique<scheduler::Loop>(*session.engine, loop);
  return session;
}

std::vector<int32_t> stop_tokens(const checkpoint::GenerationConfig& generation, const checkpoint::TextConfig& config,
                                 const text::Tokenizer& tokenizer) {
  std::vector<int32_t> stops;
  const auto add = [&](int64_t id) {
    const auto token = static_cast<int32_t>(id);
    if (std::find(stops.begin(), stops.end(), token) == stops.end()) stops.push_back(token);
  };
  for (int64_t id : generation.eos_token_ids) add(id);
  for (int64_t id : config.eos_token_ids) add(id);
  if (tokenizer.eos_token()) add(*tokenizer.eos_token());
  return stops;
}

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return read_file(path);
}

}  // namespace assay::app
