// What a checkpoint directory says about its model: config.json, generation_config.json, hf_quant_config.json.
//
// Known: Qwen3.5 (also 3.6, 3.8) dense and MoE, as a text-only config or wrapped in `text_config`. A wrong type, an
// impossible value or an unknown architecture is kCheckpoint; a valid setting the model code has no graph for is
// kUnsupported. Both name file and field. Fields are named after what they mean; the key of the file stands beside
// each.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace assay::checkpoint {

enum class LayerType { kLinearAttention, kFullAttention };

struct TextConfig {
  std::string model_type;  // of the outer config, for example qwen3_5_moe
  int64_t hidden_size = 0;
  int64_t num_layers = 0;         // num_hidden_layers
  int64_t intermediate_size = 0;  // dense MLP; 0 for MoE
  int64_t vocab_size = 0;         // rows of the embedding, padding included
  double rms_norm_eps = 1e-6;
  int64_t max_positions = 0;           // max_position_embeddings
  std::vector<LayerType> layer_types;  // num_layers entries; without the key: full where (i + 1) % interval == 0
  bool tie_embeddings = false;         // tie_word_embeddings: the text config's value, else the outer one, else false
  std::vector<int64_t> eos_token_ids;  // often without the chat's stop token: see GenerationConfig

  // Full attention.
  int64_t num_heads = 0;     // num_attention_heads
  int64_t num_kv_heads = 0;  // num_key_value_heads
  int64_t head_dim = 0;      // not hidden_size / num_heads
  int64_t rotary_dim = 0;    // leading dims of a head that rotate: head_dim * partial_rotary_factor
  double rope_theta = 10000.0;
  bool attn_output_gate = true;

  // Gated delta net.
  int64_t gdn_key_heads = 0;        // linear_num_key_heads
  int64_t gdn_value_heads = 0;      // linear_num_value_heads, a multiple of the key heads
  int64_t gdn_key_dim = 0;          // linear_key_head_dim
  int64_t gdn_value_dim = 0;        // linear_value_head_dim
  int64_t conv_width = 0;           // linear_conv_kernel_dim
  bool gated_norm_sigmoid = false;  // output_gate_type: sigmoid instead of silu

  // Mixture of experts; num_experts 0 is a dense model. Router weights are always renormalised over the chosen experts.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;  // num_experts_per_tok
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_intermediate_size = 0;

  int64_t mtp_layers = 0;  // mtp_num_hidden_layers
};

struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
};

// What the config files claim about quantisation. Only compared with the tensors, which decide (checkpoint_binder.h).
struct QuantisationHints {
  std::string method;                                   // quant_method, for example modelopt; empty if there is none
  std::string algorithm;                                // quant_algo, for example NVFP4 or MIXED_PRECISION
  std::vector<std::string> excluded;                    // exclude_modules and ignore: patterns with '*'
  std::map<std::string, std::string> layer_algorithms;  // quantized_layers: module -> quant_algo
};

// `file` names the text in errors.
Result<TextConfig> parse_text_config(std::string_view text, const std::string& file);
Result<GenerationConfig> parse_generation_config(std::string_view text, const std::string& file);

// Leaves the first `count` layers, at most all.
void keep_layers(TextConfig& config, int64_t count);

// From the config.json of a checkpoint directory, or from a file of this kind whose name ends in .json.
Result<TextConfig> load_text_config(const std::string& path);

// From the files of a checkpoint directory. A missing generation_config.json gives an empty GenerationConfig; either
// source of hints may be missing.
Result<GenerationConfig> load_generation_config(const std::string& directory);
Result<QuantisationHints> load_quantisation_hints(const std::string& directory);

// Whether a pattern of an exclude list covers a module: '*' matches any text, and "X*" as well as "X" cover X and
// X.anything.
bool pattern_covers(std::string_view pattern, std::string_view module);

}  // namespace assay::checkpoint
