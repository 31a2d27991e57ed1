// Flags that several subcommands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "assay/backend_flags.h"
#include "assay/flags.h"
#include "assay/proof_options.h"
#include "base/log.h"
#include "base/result.h"
#include "engine/load.h"

namespace assay::app {

// The model directory, first positional argument of every subcommand.
Option add_model(CLI::App& app, std::string& directory);

Option add_log_level(CLI::App& app, std::string& level);

inline constexpr char kDefaultDummyFormat[] = "modelopt";

// --dummy-format, with its names.
Option add_dummy_format(CLI::App& app, std::string& format);
checkpoint::DummyFormat parse_dummy_format(const std::string& name);

// Of all subcommands that load a model.
struct CommonOptions {
  std::string model_directory;
  std::string load_format = "safetensors";
  std::string dummy_format = kDefaultDummyFormat;
  std::string dummy_router = "uniform";
  int32_t dummy_layers = 0;
  std::string device = "cpu";
  int threads = 0;
  std::string compute = "bf16";
  std::vector<std::string> forced_rows;  // "op=row"
  BackendFlags backends;
  int32_t context_length = 0;
  int32_t max_running_requests = engine::LoadOptions{}.max_sequences;
  uint64_t kv_cache_bytes = static_cast<uint64_t>(engine::LoadOptions{}.kv_cache_bytes);
  double memory_utilization = engine::LoadOptions{}.memory_utilization;
  bool explain = false;
  bool needs_tokenizer = true;      // no flag: whether the subcommand can do without text
  std::optional<ProofFlags> proof;  // set by subcommands that prove before they use the model
  std::optional<int> nice;          // of the threads that compute
  std::string log_level = "warning";
};

void add_common_options(CLI::App& app, CommonOptions& options);

// --nice, of subcommands that run for long.
void add_nice(CLI::App& app, std::optional<int>& nice);
// Before the engine is loaded: its threads inherit the value from the calling thread.
Result<void> apply_nice(const std::optional<int>& nice);

void apply_log_level(const std::string& level);

// What a child process must be told to load the same model: ASSAY_<FLAG>=value.
std::vector<std::string> child_environment(const CommonOptions& options, int32_t real_vocab);

// As the engine wants them.
engine::LoadOptions load_options(const CommonOptions& options);

}  // namespace assay::app
