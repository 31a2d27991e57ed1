#include "checkpoint/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/field_reader.h"
#include "checkpoint/json_file.h"

namespace assay::checkpoint {
namespace {

using nlohmann::json;

struct KnownModel {
  const char* model_type;
  const char* architecture;
  bool mixture_of_experts;
};

// Text-only exports exist under both the plain and the wrapped architecture's name.
constexpr KnownModel kKnownModels[] = {
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", false},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", false},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", true},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", true},
};

constexpr IntegerRange kSize = {1, int64_t{1} << 24};
constexpr IntegerRange kCount = {1, 1 << 16};
constexpr IntegerRange kTokenId = {0, INT32_MAX};
constexpr int64_t kDefaultHeadDim = 256;
constexpr int64_t kDefaultFullAttentionInterval = 4;
constexpr double kDefaultPartialRotaryFactor = 0.25;
constexpr double kDefaultRopeTheta = 10000.0;

std::string known_names(const char* KnownModel::*member) {
  std::string names;
  for (const KnownModel& model : kKnownModels) names += (names.empty() ? "one of " : ", ") + std::string(model.*member);
  return names;
}

const KnownModel* find_known(const char* KnownModel::*member, const std::string& name) {
  for (const KnownModel& model : kKnownModels) {
    if (name == model.*member) return &model;
  }
  return nullptr;
}

// Whether the model is a mixture of experts, by model_type and architectures, which must be known and agree.
bool read_kind(FieldReader& outer) {
  const std::string model_type = outer.string_or("model_type", "");
  const std::vector<std::string> architectures = outer.strings_or_empty("architectures");
  const std::string architecture = architectures.empty() ? "" : architectures.front();
  const KnownModel* by_type = find_known(&KnownModel::model_type, model_type);
  const KnownModel* by_architecture = find_known(&KnownModel::architecture, architecture);
  if (!architecture.empty() && by_architecture == nullptr) {
    outer.refuse("architectures", "unknown architecture", architecture, known_names(&KnownModel::architecture));
  }
  if (by_type == nullptr) {
    outer.refuse("model_type", "unknown model type", model_type.empty() ? "nothing" : model_type,
                 known_names(&KnownModel::model_type));
    return false;
  }
  if (by_architecture != nullptr && by_type->mixture_of_experts != by_architecture->mixture_of_experts) {
    outer.refuse("architectures", "architecture contradicts model_type", architecture, by_type->architecture);
  }
  return by_type->mixture_of_experts;
}

void refuse_unsupported(FieldReader& text, const char* key, const std::string& got, const std::string& wanted) {
  text.refuse(key, "not supported", got, wanted, ErrorKind::kUnsupported);
}

// Settings that no known model uses and the graph does not have.
void check_fixed_settings(FieldReader& text) {
  for (const char* key : {"attention_bias", "layer_scale", "mtp_use_dedicated_embeddings"}) {
    if (text.boolean_or(key, false)) refuse_unsupported(text, key, "true", "false");
  }
  if (!text.boolean_or("norm_topk_prob", true)) refuse_unsupported(text, "norm_topk_prob", "false", "true");
  const std::string activation = text.string_or("hidden_act", "silu");
  if (activation != "silu") refuse_unsupported(text, "hidden_act", activation, "silu");
  if (text.integer_or("decoder_sparse_step", 1, kCount) != 1) {
    refuse_unsupported(text, "decoder_sparse_step", "another step", "1");
  }
  if (!text.integers_or_empty("mlp_only_layers", {0, INT32_MAX}).empty()) {
    refuse_unsupported(text, "mlp_only_layers", "a list with entries", "[]");
  }
}

void read_layer_types(FieldReader& text, TextConfig* config) {
  const int64_t interval = text.integer_or("full_attention_interval", kDefaultFullAttentionInterval, kCount);
  if (!text.has("layer_types")) {
    for (int64_t i = 0; i < config->num_layers; ++i) {
      config->layer_types.push_back((i + 1) % interval == 0 ? LayerType::kFullAttention : LayerType::kLinearAttention);
    }
    return;
  }
  const std::vector<std::string> names = text.strings_or_empty("layer_types");
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "full_attention" && names[i] != "linear_attention") {
      text.refuse(fmt::format("layer_types[{}]", i), "unknown layer type", names[i],
                  "linear_attention or full_attention");
    }
    config->layer_types.push_back(names[i] == "full_attention" ? LayerType::kFullAttention
                                                               : LayerType::kLinearAttention);
  }
  if (static_cast<int64_t>(names.size()) != config->num_layers) {
    text.refuse("layer_types", "wrong length", std::to_string(names.size()),
                fmt::format("{}, as num_hidden_layers", config->num_layers));
  }
}

// rope_scaling, if present, replaces rope_parameters; what the chosen one lacks is looked up in the text config itself.
void read_rope(FieldReader& text, const std::string& where, TextConfig* config) {
  const char* key = text.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const json* chosen = text.find(key);
  const json empty = json::object();
  if (chosen != nullptr && !chosen->is_object()) {
    text.refuse(key, "bad value", chosen->dump(), "an object");
    return;
  }
  FieldReader rope(chosen != nullptr ? *chosen : empty, where + ": " + key);
  if (chosen != nullptr) {
    for (const auto& [name, value] : chosen->items()) {
      if (value.is_object())
        rope.refuse(name, "not supported", "an object", "one set for all layers", ErrorKind::kUnsupported);
    }
  }
  // "mrope" is the older spelling of default: positions of text are the same in all three sections.
  const std::string type = rope.string_or("rope_type", rope.string_or("type", "default"));
  if (type != "default" && type != "mrope") {
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type", "rope type is not supported", type, "default or mrope",
                ErrorKind::kUnsupported);
  }
  config->rope_theta = rope.positive_or("rope_theta", text.positive_or("rope_theta", kDefaultRopeTheta));
  const double factor =
      rope.positive_or("partial_rotary_factor", text.positive_or("partial_rotary_factor", kDefaultPartialRotaryFactor));
  if (Result<void> result = rope.result(); !result.ok()) {
    const Error& error = result.error();
    text.refuse(error.where.substr(where.size() + 2), error.what, error.got, error.wanted, error.kind);
    return;
  }
  config->rotary_dim = factor <= 1 ? static_cast<int64_t>(static_cast<double>(config->head_dim) * factor) : 0;
  if (config->rotary_dim < 2 || config->rotary_dim % 2 != 0) {
    text.refuse("partial_rotary_factor", "bad value", fmt::format("{}", factor),
                fmt::format("a factor that leaves an even part of head_dim {}", config->head_dim));
  }
}

void read_attention(FieldReader& text, TextConfig* config) {
  config->num_heads = text.integer("num_attention_heads", kCount);
  config->num_kv_heads = text.integer("num_key_value_heads", kCount);
  config->head_dim = text.integer_or("head_dim", kDefaultHeadDim, kCount);
  config->attn_output_gate = text.boolean_or("attn_output_gate", true);
  if (text.ok() && config->num_heads % config->num_kv_heads != 0) {
    text.refuse("num_key_value_heads", "does not divide the query heads", std::to_string(config->num_kv_heads),
                fmt::format("a divisor of {}", config->num_heads));
  }
}

void read_gated_delta_net(FieldReader& text, TextConfig* config) {
  config->gdn_key_heads = text.integer("linear_num_key_heads", kCount);
  config->gdn_value_heads = text.integer("linear_num_value_heads", kCount);
  config->gdn_key_dim = text.integer_or("linear_key_head_dim", 128, kCount);
  config->gdn_value_dim = text.integer_or("linear_value_head_dim", 128, kCount);
  config->conv_width = text.integer_or("linear_conv_kernel_dim", 4, {1, 64});
  if (text.ok() && config->gdn_value_heads % config->gdn_key_heads != 0) {
    text.refuse("linear_num_value_heads", "not a multiple of the key heads", std::to_string(config->gdn_value_heads),
                fmt::format("a multiple of {}", config->gdn_key_heads));
  }
  const std::string gate = text.string_or("output_gate_type", "silu");
  config->gated_norm_sigmoid = gate == "sigmoid";
  if (gate != "sigmoid" && gate != "silu" && gate != "swish") {
    text.refuse("output_gate_type", "unknown gate", gate, "silu, swish or sigmoid");
  }
}

void read_mlp(FieldReader& text, bool mixture_of_experts, TextConfig* config) {
  if (!mixture_of_experts) {
    config->intermediate_size = text.integer("intermediate_size", kSize);
    if (text.integer_or("num_experts", 0, {0, kCount.most}) != 0) {
      text.refuse("num_experts", "experts in a dense model type", text.find("num_experts")->dump(), "none");
    }
    return;
  }
  config->num_experts = text.integer("num_experts", kCount);
  config->experts_per_token = text.integer("num_experts_per_tok", {1, std::max<int64_t>(1, config->num_experts)});
  config->moe_intermediate_size = text.integer("moe_intermediate_size", kSize);
  config->shared_expert_intermediate_size = text.integer("shared_expert_intermediate_size", kSize);
}

// Where the text model's fields are: text_config, or the config itself.
Result<const json*> find_text(const json& outer, const std::string& file) {
  const auto it = outer.find("text_config");
  if (it == outer.end() || it->is_null()) return &outer;
  if (it->is_object()) return &*it;
  return Error{.kind = ErrorKind::kCheckpoint,
               .what = "bad value",
               .where = file + ": text_config",
               .got = it->type_name(),
               .wanted = "an object",
               .hint = ""};
}

Result<json> read_optional(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return json::object();
  return read_json_object(path);
}

Result<GenerationConfig> generation_config_from(const json& object, const std::string& file) {
  FieldReader fields(object, file);
  GenerationConfig config;
  config.eos_token_ids = fields.integers_or_empty("eos_token_id", kTokenId);
  if (fields.has("do_sample")) config.do_sample = fields.boolean_or("do_sample", false);
  if (const json* value = fields.find("temperature"); value != nullptr && value->is_number() && *value == 0) {
    config.temperature = 0.0;
  } else if (value != nullptr) {
    config.temperature = fields.positive_or("temperature", 1.0);
  }
  if (fields.has("top_k")) config.top_k = fields.integer("top_k", {0, INT32_MAX});
  if (fields.has("top_p")) config.top_p = fields.positive_or("top_p", 1.0);
  if (config.top_p.value_or(1.0) > 1.0) {
    fields.refuse("top_p", "bad value", fields.find("top_p")->dump(), "a number above 0, at most 1");
  }
  ASSAY_TRY(fields.result());
  return config;
}

// Adds what one file says; an algorithm that is already set stays.
Result<void> read_hints(const json& object, const std::string& where, QuantisationHints* hints) {
  FieldReader fields(object, where);
  const std::string method = fields.string_or("quant_method", "");
  const std::string algorithm = fields.string_or("quant_algo", "");
  if (hints->method.empty()) hints->method = method;
  if (hints->algorithm.empty()) hints->algorithm = algorithm;
  if (!algorithm.empty() && algorithm != hints->algorithm) {
    log_warning("{}: quant_algo {} differs from {}; the tensors decide", where, algorithm, hints->algorithm);
  }
  for (const char* key : {"exclude_modules", "ignore", "modules_to_not_convert"}) {
    for (std::string& pattern : fields.strings_or_empty(key)) {
      auto& excluded = hints->excluded;
      if (std::find(excluded.begin(), excluded.end(), pattern) == excluded.end())
        excluded.push_back(std::move(pattern));
    }
  }
  if (const json* layers = fields.find("quantized_layers"); layers != nullptr && layers->is_object()) {
    for (const auto& [module, settings] : layers->items()) {
      if (!settings.is_object()) continue;
      FieldReader layer(settings, where + ": quantized_layers." + module);
      hints->layer_algorithms[module] = layer.string_or("quant_algo", "");
      ASSAY_TRY(layer.result());
    }
  }
  return fields.result();
}

Result<TextConfig> text_config_from(const json& root, const std::string& file) {
  FieldReader outer(root, file);
  TextConfig config;
  const bool mixture_of_experts = read_kind(outer);
  config.model_type = outer.string_or("model_type", "");
  ASSAY_TRY(outer.result());
  ASSAY_ASSIGN(const json* const text_object, find_text(root, file));
  const bool wrapped = text_object != &root;
  const std::string where = wrapped ? file + ": text_config" : file;
  FieldReader text(*text_object, where);
  if (wrapped && text.has("model_type")) {
    const std::string inner = text.string_or("model_type", "");
    const KnownModel* known = find_known(&KnownModel::model_type, inner);
    if (known == nullptr || known->mixture_of_experts != mixture_of_experts) {
      text.refuse("model_type", "does not fit the outer model_type", inner, config.model_type + "_text");
    }
  }
  config.hidden_size = text.integer("hidden_size", kSize);
  config.num_layers = text.integer("num_hidden_layers", {1, 4096});
  config.vocab_size = text.integer("vocab_size", kSize);
  config.rms_norm_eps = text.positive_or("rms_norm_eps", 1e-6);
  config.max_positions = text.integer("max_position_embeddings", {1, INT32_MAX});
  config.mtp_layers = text.integer_or("mtp_num_hidden_layers", 0, {0, 64});
  config.tie_embeddings = text.boolean_or("tie_word_embeddings", outer.boolean_or("tie_word_embeddings", false));
  config.eos_token_ids = (text.has("eos_token_id") ? text : outer).integers_or_empty("eos_token_id", kTokenId);
  check_fixed_settings(text);
  read_layer_types(text, &config);
  read_attention(text, &config);
  read_rope(text, where, &config);
  read_gated_delta_net(text, &config);
  read_mlp(text, mixture_of_experts, &config);
  ASSAY_TRY(outer.result());
  ASSAY_TRY(text.result());
  return config;
}

}  // namespace

Result<TextConfig> parse_text_config(std::string_view text, const std::string& file) {
  ASSAY_ASSIGN(const json root, parse_json_object(text, file));
  return text_config_from(root, file);
}

Result<GenerationConfig> parse_generation_config(std::string_view text, const std::string& file) {
  ASSAY_ASSIGN(const json root, parse_json_object(text, file));
  return generation_config_from(root, file);
}

Result<TextConfig> load_text_config(const std::string& path) {
  const std::string file = path.ends_with(".json") ? path : path + "/config.json";
  ASSAY_ASSIGN(const json root, read_json_object(file));
  return text_config_from(root, file);
}

void keep_layers(TextConfig& config, int64_t count) {
  config.num_layers = std::min(config.num_layers, count);
  config.layer_types.resize(static_cast<size_t>(config.num_layers));
}

Result<GenerationConfig> load_generation_config(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  ASSAY_ASSIGN(const json root, read_optional(path));
  return generation_config_from(root, path);
}

Result<QuantisationHints> load_quantisation_hints(const std::string& directory) {
  QuantisationHints hints;
  const struct {
    const char* file;
    const char* key;
  } sources[] = {{"hf_quant_config.json", "quantization"}, {"config.json", "quantization_config"}};
  for (const auto& source : sources) {
    const std::string path = directory + "/" + source.file;
    ASSAY_ASSIGN(const json root, read_optional(path));
    const auto section = root.find(source.key);
    if (section == root.end() || !section->is_object()) continue;
    ASSAY_TRY(read_hints(*section, path + ": " + source.key, &hints));
  }
  return hints;
}

bool pattern_covers(std::string_view pattern, std::string_view module) {
  // Greedy match with one point to go back to: the last '*'.
  size_t at = 0, in = 0, star = std::string_view::npos, retry = 0;
  while (in < module.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      retry = in;
    } else if (at < pattern.size() && pattern[at] == module[in]) {
      ++at;
      ++in;
    } else if (at == pattern.size() && module[in] == '.') {
      return true;  // the whole pattern ends at a module's name: it covers what is inside
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in = ++retry;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  // "X.*" covers X itself too.
  return at == pattern.size() || pattern.substr(at) == ".*";
}

}  // namespace assay::checkpoint
