// assay inspect: what is in a checkpoint, or what a config would take, without loading it into an engine.
#include <fmt/core.h>

#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/command.h"
#include "assay/common_options.h"
#include "assay/inspect_config.h"
#include "base/shape.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

namespace assay::app {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  std::string model_directory;
  std::string config_path;
  std::string dummy_format = kDefaultDummyFormat;
  std::string log_level = "warning";
  bool list = false;
  bool json = false;
};

struct FormatTotal {
  int64_t tensors = 0;
  int64_t parameters = 0;
  uint64_t bytes = 0;
};

// The format of a tensor, decided from its type and its `*_scale` siblings, and how many parameters it holds: scales
// belong to the tensor they scale, and a byte of NVFP4 holds two.
struct TensorFormat {
  std::string name;
  int64_t parameters = 0;
};

TensorFormat format_of(const checkpoint::Checkpoint& checkpoint, const checkpoint::TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("_scale") || name.ends_with("_scale_2"))
    return {"scale " + std::string(dtype_name(tensor.dtype)), 0};
  int64_t count = 1;
  for (int64_t size : tensor.shape) count *= size;
  if (tensor.dtype == DType::kU8 && checkpoint.find(tensor.name + "_scale_2") != nullptr) return {"NVFP4", 2 * count};
  return {std::string(dtype_name(tensor.dtype)), count};
}

Result<void> run(const InspectOptions& options) {
  apply_log_level(options.log_level);
  if (!options.config_path.empty()) {
    return print_byte_table(options.config_path, parse_dummy_format(options.dummy_format), options.json);
  }
  ASSAY_ASSIGN(const auto config, checkpoint::load_text_config(options.model_directory));
  ASSAY_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::open(options.model_directory));
  std::map<std::string, FormatTotal> formats;
  FormatTotal all;
  ordered_json list = ordered_json::array();
  for (const checkpoint::TensorInfo& tensor : checkpoint.tensors()) {
    const TensorFormat format = format_of(checkpoint, tensor);
    for (FormatTotal* total : {&formats[format.name], &all}) {
      ++total->tensors;
      total->parameters += format.parameters;
      total->bytes += tensor.bytes.size();
    }
    if (!options.list) continue;
    if (options.json) {
      list.push_back(
          {{"name", tensor.name}, {"format", format.name}, {"shape", tensor.shape}, {"bytes", tensor.bytes.size()}});
    } else {
      fmt::print("{:<80} {:<14} {:<18} {:>12}\n", tensor.name, format.name, shape_text(tensor.shape),
                 tensor.bytes.size());
    }
  }
  if (options.json) {
    ordered_json out{{"model_type", config.model_type},
                     {"layers", config.num_layers},
                     {"parameters", all.parameters},
                     {"bytes", all.bytes},
                     {"tensors", all.tensors}};
    for (const auto& [name, total] : formats) {
      out["formats"][name] = {{"tensors", total.tensors}, {"parameters", total.parameters}, {"bytes", total.bytes}};
    }
    if (options.list) out["list"] = std::move(list);
    fmt::print("{}\n", out.dump());
    return {};
  }
  fmt::print("{}, {} layers, hidden size {}, vocabulary {}, {} positions\n", config.model_type, config.num_layers,
             config.hidden_size, config.vocab_size, config.max_positions);
  fmt::print("{:<14} {:>8} {:>16} {:>16}\n", "format", "tensors", "parameters", "bytes");
  const auto row = [](const std::string& name, const FormatTotal& total) {
    fmt::print("{:<14} {:>8} {:>16} {:>16}\n", name, total.tensors, total.parameters, total.bytes);
  };
  for (const auto& [name, total] : formats) row(name, total);
  row("all", all);
  return {};
}

}  // namespace

Command add_inspect(CLI::App& parent) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App& app = add_subcommand(parent, "inspect", "List the tensors of a checkpoint, their formats and sizes");
  Option model = add_model(app, options->model_directory).required(false);
  const Option config = add_option(app, "--config", options->config_path,
                                   "A config.json of any name, without weights: print the bytes of its weights by "
                                   "class, of the KV cache and of the state");
  model.excludes(config);
  add_dummy_format(app, options->dummy_format).needs(config);
  require_flags(app);
  add_flag(app, "--list", options->list, "Every tensor, not only the totals by format");
  add_flag(app, "--json", options->json,
           "Print one object: parameters, bytes, tensors, formats; with --list also list (name, format, shape, bytes)");
  add_log_level(app, options->log_level);
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app
