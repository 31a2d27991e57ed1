// How to choose tokens: flags, and what the model's generation_config.json says where no flag was given.
#pragma once

#include <cstdint>
#include <optional>

#include "assay/flags.h"
#include "checkpoint/config.h"
#include "scheduler/request.h"

namespace assay::app {

struct SamplingOptions {
  bool greedy = false;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;
};

void add_sampling_options(CLI::App& app, SamplingOptions& options);

// Sets the sampling fields and max_tokens of a request. Without --seed the seed is a new one each time.
void apply_sampling(const SamplingOptions& options, const checkpoint::GenerationConfig& defaults,
                    scheduler::Request& request);

}  // namespace assay::app
