// The fields that chat completions and completions share, validated and bounded. Pure functions of the body.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/json_fields.h"

namespace assay::server {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;  // of one stop string
inline constexpr size_t kMaxStopTokens = 1024;
inline constexpr size_t kMaxBiases = 1024;  // OpenAI's is 300; an object of the body has no more members
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxChoices = 128;        // of one prompt
inline constexpr size_t kMaxAllChoices = 256;  // of all prompts: each has a copy of its prompt

// What a request leaves out stays empty: the server's defaults apply.
struct GenerationOptions {
  std::string model;  // may be empty: the served one

  std::optional<int32_t> max_tokens;                  // at least 1; completions: 0 scores the prompt
  std::optional<float> temperature;                   // [0, 2]
  std::optional<float> top_p;                         // [0, 1]
  std::optional<float> min_p;                         // [0, 1]
  std::optional<int32_t> top_k;                       // 0: all
  std::optional<uint64_t> seed;                       // choice i of a prompt draws with seed + i
  std::optional<float> presence_penalty;              // [-2, 2]
  std::optional<float> frequency_penalty;             // [-2, 2]
  std::optional<float> repetition_penalty;            // [0.01, 100]
  std::vector<std::pair<int32_t, float>> logit_bias;  // each from -100 to 100

  std::vector<std::string> stop;  // not empty strings
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  int32_t min_tokens = 0;   // neither stop tokens nor stop strings end a choice earlier
  bool ignore_eos = false;  // the model's own stop tokens end nothing
  bool skip_special_tokens = true;

  int32_t n = 1;
  bool logprobs = false;
  int32_t top_logprobs = 0;                // 0 .. 20
  std::optional<int32_t> prompt_logprobs;  // alternatives per prompt token, 0 .. 20
  bool return_token_ids = false;
  bool stream = false;
  bool include_usage = false;

  std::vector<std::string> ignored_fields;  // members of the body without effect here
};

// All but max_tokens' other names and logprobs, which differ between the endpoints. Fields that would change the answer
// and cannot be honoured (response_format, grammars) are refused.
MaybeError read_generation_options(const nlohmann::ordered_json& body, GenerationOptions& options);

// Fills ignored_fields: all members that neither the shared readers nor the endpoint know.
void note_ignored_fields(const nlohmann::ordered_json& body, const std::vector<std::string_view>& known,
                         GenerationOptions& options);

}  // namespace assay::server
