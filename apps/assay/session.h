// Session: a loaded model with a running loop, for commands that generate or score.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "assay/common_options.h"
#include "base/result.h"
#include "checkpoint/config.h"
#include "engine/load.h"
#include "scheduler/loop.h"
#include "text/tokenizer.h"

namespace assay::app {

struct Session {
  std::unique_ptr<text::Tokenizer> tokenizer;  // null if the model is a config alone
  std::unique_ptr<engine::LocalEngine> engine;
  checkpoint::GenerationConfig generation;
  std::vector<int32_t> stop_tokens;
  std::unique_ptr<scheduler::Loop> loop;  // declared last: it stops before the engine goes

  // The ids as text. Without the last one if it is a stop token.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const;
  bool is_stop(int32_t id) const;
};

// What happens at each stage of the load; besides, each is logged.
using Progress = std::function<void(const std::string&)>;

// max_queued: requests that may wait for a place.
Result<Session> open_session(const CommonOptions& options, int32_t max_queued, const Progress& progress = {});

// The tokens that end an answer: of generation_config.json, config.json and tokenizer_config.json.
std::vector<int32_t> stop_tokens(const checkpoint::GenerationConfig& generation, const checkpoint::TextConfig& config,
                                 const text::Tokenizer& tokenizer);

// kIo if it cannot be read. "-": standard input.
Result<std::string> read_input(const std::string& path);

}  // namespace assay::app
