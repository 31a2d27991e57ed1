#include "assay/inspect_config.h"

#include <fmt/core.h>

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/config.h"
#include "engine/state_memory.h"
#include "models/make_model.h"

namespace assay::app {
namespace {

struct ClassTotal {
  std::string_view name;
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t token_bytes = 0;  // read to decode one token
};

constexpr std::array<std::string_view, 8> kClasses = {"embedding", "head",       "attention", "delta net",
                                                      "router",    "shared MLP", "experts",   "norms"};

// Which class a weight belongs to, by its name in a checkpoint.
std::string_view class_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("embed_tokens")) return "embedding";
  if (has("lm_head")) return "head";
  if (has("self_attn.")) return "attention";
  if (has("linear_attn.")) return "delta net";
  if (name.ends_with(".experts")) return "experts";
  if (name.ends_with("mlp.gate") || name.ends_with("shared_expert_gate")) return "router";
  return has("mlp.") ? "shared MLP" : "norms";
}

class ByteTable {
 public:
  explicit ByteTable(const checkpoint::TextConfig& config) : config_(config) {
    for (std::string_view name : kClasses) totals_.push_back({name});
  }

  ops::WeightId add(const ops::WeightSource& source) {
    const std::string_view kind = class_of(source.name);
    for (ClassTotal& total : totals_) {
      if (total.name == kind) add_to(total, source);
    }
    return static_cast<ops::WeightId>(next_id_++);
  }

  const std::vector<ClassTotal>& totals() const { return totals_; }

  ClassTotal sum() const {
    ClassTotal all{"all"};
    for (const ClassTotal& total : totals_) {
      all.parameters += total.parameters;
      all.bytes += total.bytes;
      all.token_bytes += total.token_bytes;
    }
    return all;
  }

 private:
  void add_to(ClassTotal& total, const ops::WeightSource& source) const {
    int64_t bytes = 0;
    for (const numeric::EncodedMatrix& matrix : source.matrices) {
      total.parameters += matrix.rows * matrix.cols;
      bytes += numeric::encoded_bytes(matrix);
    }
    total.bytes += bytes;
    if (total.name == "embedding") {
      // One row, or all of them as the head.
      total.token_bytes += config_.tie_embeddings ? bytes : bytes / config_.vocab_size;
    } else if (total.name == "experts") {
      total.token_bytes += bytes / config_.num_experts * config_.experts_per_token;
    } else {
      total.token_bytes += bytes;
    }
  }

  const checkpoint::TextConfig& config_;
  std::vector<ClassTotal> totals_;
  int32_t next_id_ = 0;
};

struct StateBytes {
  int64_t kv_per_token;
  int64_t per_sequence;
};

void print_table(const checkpoint::TextConfig& config, const ByteTable& table, const StateBytes& state) {
  constexpr double kMega = 1e6;
  fmt::print("{}, {} layers, hidden size {}, {} experts\n", config.model_type, config.num_layers, config.hidden_size,
             config.num_experts);
  fmt::print("{:<12} {:>16} {:>14} {:>18}\n", "weights", "parameters", "MB", "MB for one token");
  std::vector<ClassTotal> rows = table.totals();
  rows.push_back(table.sum());
  for (const ClassTotal& row : rows) {
    if (row.parameters == 0) continue;
    fmt::print("{:<12} {:>16} {:>14.1f} {:>18.1f}\n", row.name, row.parameters, static_cast<double>(row.bytes) / kMega,
               static_cast<double>(row.token_bytes) / kMega);
  }
  fmt::print("KV cache, bytes per token       {:>12}\n", state.kv_per_token);
  fmt::print("state, bytes per sequence       {:>12}\n", state.per_sequence);
}

void print_json(const checkpoint::TextConfig& config, const ByteTable& table, const StateBytes& state) {
  const ClassTotal all = table.sum();
  nlohmann::ordered_json out{{"model_type", config.model_type},
                             {"layers", config.num_layers},
                             {"parameters", all.parameters},
                             {"bytes", all.bytes},
                             {"bytes_per_decoded_token", all.token_bytes}};
  for (const ClassTotal& row : table.totals()) {
    if (row.parameters == 0) continue;
    out["classes"][std::string(row.name)] = {
        {"parameters", row.parameters}, {"bytes", row.bytes}, {"bytes_per_decoded_token", row.token_bytes}};
  }
  out["kv_bytes_per_token"] = state.kv_per_token;
  out["state_bytes_per_sequence"] = state.per_sequence;
  fmt::print("{}\n", out.dump());
}

}  // namespace

Result<void> print_byte_table(const std::string& config_path, checkpoint::DummyFormat format, bool json) {
  ASSAY_ASSIGN(const checkpoint::TextConfig config, checkpoint::load_text_config(config_path));
  checkpoint::DummyWeights nothing;
  checkpoint::DummyBinder binder(nothing,
                                 {.format = format, .tied_embeddings = config.tie_embeddings, .allocate = false});
  ByteTable table(config);
  ASSAY_ASSIGN(const auto model,
               models::make_model(
                   config, binder, [&](ops::WeightSource source) { return table.add(source); }, DType::kBf16));
  const models::StateShape& shape = model->state_shape();
  const StateBytes state{engine::StateMemory::page_bytes(shape, 1, DType::kBf16),
                         engine::StateMemory::slot_bytes(shape, DType::kBf16)};
  json ? print_json(config, table, state) : print_table(config, table, state);
  return {};
}

}  // namespace assay::app
