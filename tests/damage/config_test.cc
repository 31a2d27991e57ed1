// Damaged config.json, generation_config.json and quantisation lists.
#include "checkpoint/config.h"
#include "damage/damage.h"

namespace assay::damage {
namespace {

constexpr char kFile[] = "config.json";

const std::vector<ordered_json> kNoIntegers = {
    "8", -1, 1.5, true, ordered_json::array(), ordered_json::object(), 1e300, 9223372036854775808u, 4294967296};
const std::vector<ordered_json> kNoStrings = {1, true, ordered_json::array(), ordered_json::object(), "nonsense"};
const std::vector<ordered_json> kNoBooleans = {"true", 1, ordered_json::array(), ordered_json::object()};
const std::vector<ordered_json> kNoPositives = {"1", -1, 0, true, ordered_json::array(), ordered_json::object()};

class Config : public ::testing::Test {
 protected:
  // `path`: the object that holds the fields, outermost member first.
  void open(const std::string& name, std::vector<std::string> path = {}) {
    damaged_ = std::make_unique<Damaged>(golden(name), load_engine);
    path_ = std::move(path);
  }

  void refuse(const std::string& field, const std::optional<ordered_json>& value,
              std::optional<std::vector<std::string>> wanted = std::nullopt) {
    ordered_json config = damaged_->json(kFile);
    ordered_json* object = &config;
    for (const std::string& member : path_) object = &(*object)[member];
    if (value) {
      (*object)[field] = *value;
    } else {
      object->erase(field);
    }
    damaged_->refuse(field + " " + (value ? value->dump() : "missing"), kFile, config.dump(),
                     wanted.value_or(std::vector<std::string>{kFile, field}));
  }
  void refuse_all(const std::vector<std::string>& fields, const std::vector<ordered_json>& values) {
    for (const std::string& field : fields) {
      for (const ordered_json& value : values) refuse(field, value);
    }
  }
  void refuse_missing(const std::vector<std::string>& fields) {
    for (const std::string& field : fields) {
      refuse(field, std::nullopt);
      refuse(field, ordered_json(nullptr));
      refuse(field, 0);
    }
  }

  std::unique_ptr<Damaged> damaged_;
  std::vector<std::string> path_;
};

void check_common(const std::function<void(const std::vector<std::string>&, const std::vector<ordered_json>&)>& all) {
  all({"hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "num_attention_heads",
       "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
       "linear_value_head_dim", "linear_conv_kernel_dim", "full_attention_interval", "mtp_num_hidden_layers"},
      kNoIntegers);
  all({"hidden_act", "output_gate_type"}, kNoStrings);
  all({"attention_bias", "attn_output_gate", "tie_word_embeddings", "norm_topk_prob", "layer_scale"}, kNoBooleans);
  all({"rms_norm_eps"}, kNoPositives);
  all({"layer_types"}, {"x",
                        1,
                        ordered_json::object(),
                        {1},
                        {"linear_attention"},
                        ordered_json::array(),
                        {"linear_attention", "linear_attention", "sliding_attention"}});
  all({"rope_parameters", "rope_scaling"}, {"x", 1, ordered_json::array()});
  all({"eos_token_id"}, {"x", -1, 1.5, {"x"}, ordered_json::object(), {1, -1}, true});
  all({"attention_bias"}, {true});
  all({"norm_topk_prob"}, {false});
  all({"mlp_only_layers"}, {{1}, "x", {-1}});
  all({"decoder_sparse_step"}, {2, 0, "x"});
}

TEST_F(Config, OfADenseModel) {
  open("dense_gates_nvfp4");
  check_common([&](const auto& fields, const auto& values) { refuse_all(fields, values); });
  refuse_missing({"hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "num_attention_heads",
                  "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads", "intermediate_size"});
  refuse_all({"intermediate_size"}, kNoIntegers);
  refuse_all({"model_type"}, kNoStrings);
  refuse("model_type", std::nullopt);
  refuse_all({"architectures"}, {"x", {1}, {"LlamaForCausalLM"}, {"Qwen3_5MoeForCausalLM"}, ordered_json::object()});
  refuse_all({"num_experts"}, {4, -1, "x"});
  refuse_all({"text_config"}, {1, "x", ordered_json::array()});
  path_ = {"rope_parameters"};
  refuse_all({"rope_theta"}, kNoPositives);
  refuse_all({"partial_rotary_factor"}, {"x", -1, 0, 2, 0.01, 0.2});
  refuse_all({"rope_type"}, {"yarn", "llama3", 1, ordered_json::object()});
  refuse("full_attention", ordered_json{{"rope_type", "default"}});
  EXPECT_GE(damaged_->count(), 250);
}

TEST_F(Config, OfAWrappedMixture) {
  open("moe_wrapped_sharded", {"text_config"});
  check_common([&](const auto& fields, const auto& values) { refuse_all(fields, values); });
  refuse_missing({"hidden_size", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
                  "shared_expert_intermediate_size"});
  refuse_all({"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"},
             kNoIntegers);
  refuse("num_experts_per_tok", 8);
  refuse_all({"model_type"}, {"qwen3_5_text", "llama", 3});
  path_ = {};
  refuse_all({"text_config"}, {1, "x", ordered_json::array()});
  refuse("text_config", ordered_json::object(), {{kFile, "text_config"}});
  EXPECT_GE(damaged_->count(), 240);
}

// Sizes that are valid alone and contradict the tensors: the message names the first tensor that does not fit.
TEST_F(Config, ContradictsTheTensors) {
  open("dense_gates_nvfp4");
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"hidden_size", "embed_tokens.weight"},           {"vocab_size", "embed_tokens.weight"},
      {"num_attention_heads", "self_attn.q_proj"},      {"num_key_value_heads", "self_attn.k_proj"},

      {"linear_num_value_heads", "in_proj_qkv.weight"}, {"linear_key_head_dim", "in_proj_qkv.weight"},
      {"linear_value_head_dim", "in_proj_qkv.weight"},  {"linear_conv_kernel_dim", "conv1d.weight"},
      {"intermediate_size", "mlp.gate_proj.weight"},    {"head_dim", "self_attn.q_proj"}};
  for (const auto& [field, tensor] : wanted) {
    const int64_t value = damaged_->json(kFile)[field];
    refuse(field, 2 * value, {{tensor, "wrong shape"}});
  }
  refuse("linear_num_key_heads", 1, {{"in_proj_qkv.weight", "wrong shape"}});
  refuse("attn_output_gate", false, {{"q_proj", "wrong shape"}});
  refuse("tie_word_embeddings", true, {{"lm_head.weight", "does not use"}});
  ordered_json layers = damaged_->json(kFile)["layer_types"];
  std::swap(layers[0], layers[2]);
  refuse("layer_types", layers, {{"layers.0.self_attn.q_proj.weight", "missing"}});
  const std::string moe = R"(["Qwen3_5MoeForCausalLM"])";
  refuse("architectures", ordered_json::parse(moe), {{"architectures", "contradicts"}});
}

TEST_F(Config, TruncatedAtEveryByte) {
  open("dense_gates_nvfp4");
  const std::string text = damaged_->bytes(kFile);
  for (size_t length = 0; length + 2 < text.size(); length += 3) {
    damaged_->refuse("cut at " + std::to_string(length), kFile, text.substr(0, length), {kFile});
  }
  damaged_->refuse("no config", kFile, std::nullopt, {kFile});
  const std::string doubled = "{\"hidden_size\":32," + text.substr(1);
  damaged_->refuse("a field twice", kFile, doubled, {kFile, "hidden_size", "twice"});
  damaged_->refuse("deep", kFile, deep_json(100'000), {kFile, "deep"});
  damaged_->refuse("no JSON", kFile, std::string(1000, '\0'), {kFile});
  damaged_->refuse("bad UTF-8", kFile, "{\"model_type\":\"\xc3\x28\"}", {kFile});
  EXPECT_GE(damaged_->count(), 250);
}

Result<void> load_generation(const std::string& directory) {
  auto config = checkpoint::load_generation_config(directory);
  if (!config.ok()) return std::move(config).error();
  return {};
}

TEST_F(Config, OfGeneration) {
  constexpr char kGeneration[] = "generation_config.json";
  Damaged damaged("models/pocket", load_generation);
  const auto refuse = [&](const std::string& field, const std::vector<ordered_json>& values) {
    for (const ordered_json& value : values) {
      ordered_json config = damaged.json(kGeneration);
      config[field] = value;
      damaged.refuse(field + " " + value.dump(), kGeneration, config.dump(), {kGeneration, field});
    }
  };
  refuse("eos_token_id", {"x", -1, {1, "x"}, ordered_json::object(), 1.5});
  refuse("do_sample", {"x", 1});
  refuse("temperature", {"x", -1, true});
  refuse("top_k", {"x", -1, 1.5});
  refuse("top_p", {"x", -1, 0, 1.5});
  const std::string text = damaged.bytes(kGeneration);
  for (size_t length = 0; length + 2 < text.size(); length += 5) {
    damaged.refuse("cut", kGeneration, text.substr(0, length), {kGeneration});
  }
  EXPECT_GE(damaged.count(), 50);
}

TEST_F(Config, OfQuantisation) {
  constexpr char kQuantisation[] = "hf_quant_config.json";
  open("moe_modelopt");
  const std::vector<std::pair<std::string, std::string>> lies = {
      {R"({"quantization":{"quant_algo":4}})", "quant_algo"},
      {R"({"quantization":{"quant_method":[]}})", "quant_method"},
      {R"({"quantization":{"exclude_modules":"lm_head"}})", "exclude_modules"},
      {R"({"quantization":{"exclude_modules":[1]}})", "exclude_modules"},
      {R"({"quantization":{"ignore":{}}})", "ignore"},
      {R"({"quantization":{"quantized_layers":{"lm_head":{"quant_algo":1}}}})", "quantized_layers.lm_head"}};
  for (const auto& [text, field] : lies) damaged_->refuse(text, kQuantisation, text, {kQuantisation, field});
  for (const char* text : {"", "[", "3", "{"}) damaged_->refuse(text, kQuantisation, text, {kQuantisation});
}

}  // namespace
}  // namespace assay::damage
