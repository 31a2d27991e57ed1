#include "assay/common_options.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/nice.h"

namespace assay::app {
namespace {

std::string check_forced_row(const std::string& text) {
  const size_t equals = text.find('=');
  const bool good = equals != std::string::npos && equals > 0 && equals + 1 < text.size();
  return good ? "" : "'" + text + "' is not of the form op=row";
}

}  // namespace

Option add_model(CLI::App& app, std::string& directory) {
  return add_option(app, "model", directory, "Directory with config.json, tokenizer.json and *.safetensors").required();
}

Option add_log_level(CLI::App& app, std::string& level) {
  return add_option(app, "--log-level", level, "What to log on stderr: debug, info, warning, error or off")
      .one_of({"debug", "info", "warning", "error", "off"})
      .show_default();
}

Option add_dummy_format(CLI::App& app, std::string& format) {
  return add_option(app, "--dummy-format", format,
                    "Formats of dummy weights: bf16; modelopt: routed experts NVFP4; nvfp4: all linear layers NVFP4")
      .one_of({"bf16", "modelopt", "nvfp4"})
      .show_default();
}

checkpoint::DummyFormat parse_dummy_format(const std::string& name) {
  if (name == "bf16") return checkpoint::DummyFormat::kBf16;
  return name == "nvfp4" ? checkpoint::DummyFormat::kNvfp4 : checkpoint::DummyFormat::kModelOpt;
}

void add_common_options(CLI::App& app, CommonOptions& options) {
  add_model(app, options.model_directory);
  add_option(app, "--load-format", options.load_format,
             "safetensors; dummy: seeded random weights of the config's shapes, only config.json is read")
      .one_of({"safetensors", "dummy"})
      .show_default();
  add_dummy_format(app, options.dummy_format);
  add_option(app, "--dummy-router", options.dummy_router, "Dummy weights: experts chosen evenly, or some most often")
      .one_of({"uniform", "skewed"})
      .show_default();
  add_option(app, "--dummy-layers", options.dummy_layers, "Dummy weights: only the first so many layers; 0: all")
      .range(0, 4096)
      .show_default();
  add_option(app, "--device", options.device, "What runs the model: cpu, cuda or cuda:INDEX").show_default();
  add_option(app, "--threads", options.threads, "CPU threads; 0: as many as the process may use")
      .range(0, 4096)
      .show_default();
  add_option(app, "--compute", options.compute,
             "Type of activations and KV cache: bf16, or f32 to compare with goldens")
      .one_of({"bf16", "f32"})
      .show_default();
  add_option(app, "--force", options.forced_rows,
             "op=row: run an op ('*': all that have it; 'linear nvfp4': Descs with this word) with this row or not at "
             "all; may be repeated")
      .comma_separated()
      .repeated()
      .check(check_forced_row, "OP=ROW");
  add_backend_flags(app, options.backends);
  add_option(app, "--context-length", options.context_length, "Most tokens of a sequence; 0: what the model says")
      .range(0, std::numeric_limits<int32_t>::max())
      .show_default();
  add_option(app, "--max-running-requests", options.max_running_requests, "Requests that run at once; others wait")
      .range(1, 65536)
      .show_default();
  add_option(app, "--kv-cache-bytes", options.kv_cache_bytes,
             "Most memory for keys and values (suffixes KB, MB, GB of 1024)")
      .size_suffixes()
      .show_default();
  add_option(app, "--memory-utilization", options.memory_utilization,
             "Part of the RAM, or of the GPU's memory, that weights, caches and workspaces may take")
      .range(0.01, 1.0)
      .show_default();
  add_flag(app, "--explain", options.explain, "Print which row runs each op, and why not the others, on stderr");
  add_log_level(app, options.log_level);
}

void add_nice(CLI::App& app, std::optional<int>& nice) {
  add_option(app, "--nice", nice,
             "Nice value of the threads that compute, -20 to 19: below 0 they go before other processes of busy cores, "
             "which needs CAP_SYS_NICE or RLIMIT_NICE. Default: that of the process")
      .range(-20, 19);
}

Result<void> apply_nice(const std::optional<int>& nice) {
  if (nice) ASSAY_TRY(set_nice(*nice, "--nice"));
  return {};
}

void apply_log_level(const std::string& level) {
  if (level == "debug") set_log_level(LogLevel::kDebug);
  if (level == "info") set_log_level(LogLevel::kInfo);
  if (level == "warning") set_log_level(LogLevel::kWarning);
  if (level == "error") set_log_level(LogLevel::kError);
  if (level == "off") set_log_level(LogLevel::kOff);
}

std::vector<std::string> child_environment(const CommonOptions& options, int32_t real_vocab) {
  return {"ASSAY_MODEL=" + options.model_directory,
          "ASSAY_LOAD_FORMAT=" + options.load_format,
          "ASSAY_DUMMY_FORMAT=" + options.dummy_format,
          "ASSAY_DUMMY_ROUTER=" + options.dummy_router,
          fmt::format("ASSAY_DUMMY_LAYERS={}", options.dummy_layers),
          "ASSAY_DEVICE=" + options.device,
          fmt::format("ASSAY_THREADS={}", options.threads),
          "ASSAY_COMPUTE=" + options.compute,
          fmt::format("ASSAY_CONTEXT_LENGTH={}", options.context_length),
          fmt::format("ASSAY_MAX_RUNNING_REQUESTS={}", options.max_running_requests),
          fmt::format("ASSAY_KV_CACHE_BYTES={}", options.kv_cache_bytes),
          fmt::format("ASSAY_MEMORY_UTILIZATION={}", options.memory_utilization),
          fmt::format("ASSAY_REAL_VOCAB={}", real_vocab),
          "ASSAY_LOG_LEVEL=" + options.log_level};
}

engine::LoadOptions load_options(const CommonOptions& options) {
  engine::LoadOptions load;
  load.model_directory = options.model_directory;
  if (options.load_format == "dummy") load.load_format = engine::LoadFormat::kDummy;
  load.dummy.format = parse_dummy_format(options.dummy_format);
  if (options.dummy_router == "skewed") load.dummy.router = checkpoint::DummyRouter::kSkewed;
  load.dummy_layers = options.dummy_layers;
  load.device = options.device;
  load.threads = options.threads;
  load.compute = options.compute == "f32" ? DType::kF32 : DType::kBf16;
  load.context_tokens = options.context_length;
  load.max_sequences = options.max_running_requests;
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  load.memory_utilization = options.memory_utilization;
  load.kv_cache_bytes = static_cast<int64_t>(std::min(options.kv_cache_bytes, kMost));
  for (const std::string& forced : options.forced_rows) {
    const size_t equals = forced.find('=');
    load.forced_rows.emplace_back(forced.substr(0, equals), forced.substr(equals + 1));
  }
  for (auto& forced : forced_by(options.backends, options.device)) load.forced_rows.push_back(std::move(forced));
  return load;
}

}  // namespace assay::app
