#include "assay/sampling_options.h"

#include <limits>
#include <random>

#include "assay/common_options.h"

namespace assay::app {
namespace {

uint64_t new_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  add_flag(app, "--greedy", options.greedy, "Always take the most likely token, whatever --temperature says");
  add_option(app, "--temperature", options.temperature, "0: greedy. Default: generation_config.json, else 1")
      .range(0.0, 100.0);
  add_option(app, "--top-p", options.top_p,
             "Keep the likeliest tokens up to this share. Default: generation_config.json")
      .range(0.0, 1.0);
  add_option(app, "--top-k", options.top_k, "Keep this many tokens; 0: all. Default: generation_config.json")
      .range(0, kMost);
  add_option(app, "--min-p", options.min_p, "Keep tokens with at least this share of the likeliest. Default: 0")
      .range(0.0, 1.0);
  add_option(app, "--seed", options.seed, "The same seed gives the same tokens. Default: a new one each time");
  add_option(app, "--max-tokens", options.max_tokens, "Most tokens to generate; 0: as many as the context holds")
      .range(0, kMost)
      .show_default();
}

void apply_sampling(const SamplingOptions& options, const checkpoint::GenerationConfig& defaults,
                    scheduler::Request& request) {
  const bool samples = defaults.do_sample.value_or(true);
  const double default_temperature = samples ? defaults.temperature.value_or(1.0) : 0.0;
  request.temperature = options.greedy ? 0.0f : options.temperature.value_or(static_cast<float>(default_temperature));
  request.top_p = options.top_p.value_or(static_cast<float>(defaults.top_p.value_or(1.0)));
  request.top_k = options.top_k.value_or(static_cast<int32_t>(defaults.top_k.value_or(0)));
  request.min_p = options.min_p.value_or(0.0f);
  request.seed = options.seed ? *options.seed : new_seed();
  request.max_tokens = options.max_tokens;
}

}  // namespace assay::app
