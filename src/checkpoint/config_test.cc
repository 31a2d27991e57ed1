#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/testing.h"

namespace assay::checkpoint {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDirectory;
using testing::write_file;

// A text-only dense config with what has no default.
json dense_config() {
  return json::parse(R"({
    "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 100, "max_position_embeddings": 512,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6})");
}

json moe_config() {
  json config = dense_config();
  config.erase("intermediate_size");
  config["model_type"] = "qwen3_5_moe_text";
  config["architectures"] = {"Qwen3_5MoeForCausalLM"};
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 32;
  config["shared_expert_intermediate_size"] = 48;
  return config;
}

Result<TextConfig> parse(const json& config) { return parse_text_config(config.dump(), "config.json"); }

TextConfig parsed(const json& config) {
  const auto result = parse(config);
  EXPECT_TRUE(result.ok()) << result.error().message();
  return result.ok() ? *result : TextConfig{};
}

// With `change` merged in (null removes a key): the refusal's message.
std::string refusal(json config, const json& change = json::object(), ErrorKind kind = ErrorKind::kCheckpoint) {
  config.merge_patch(change);
  const auto result = parse(config);
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.error().kind, kind) << result.error().message();
  return result.error().message();
}

TEST(TextConfig, AbsentFieldsTakeTheFamilysValues) {
  const TextConfig config = parsed(dense_config());
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_TRUE(config.attn_output_gate);
  EXPECT_FALSE(config.gated_norm_sigmoid);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.gdn_key_dim, 128);
  EXPECT_EQ(config.gdn_value_dim, 128);
  EXPECT_EQ(config.conv_width, 4);
  EXPECT_EQ(config.num_experts, 0);
  EXPECT_EQ(config.mtp_layers, 0);
  EXPECT_TRUE(config.eos_token_ids.empty());
  const auto linear = LayerType::kLinearAttention;
  const auto full = LayerType::kFullAttention;
  EXPECT_THAT(config.layer_types, ElementsAre(linear, linear, linear, full, linear, linear, linear, full));
}

TEST(TextConfig, LayerTypesBeatTheInterval) {
  json config = dense_config();
  config["num_hidden_layers"] = 3;
  config["full_attention_interval"] = 2;
  const auto linear = LayerType::kLinearAttention;
  const auto full = LayerType::kFullAttention;
  EXPECT_THAT(parsed(config).layer_types, ElementsAre(linear, full, linear));
  config["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_THAT(parsed(config).layer_types, ElementsAre(full, full, linear));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(config), HasSubstr("config.json: layer_types: wrong length: got 1, wanted 3"));
  config["layer_types"] = {"full_attention", "sliding_attention", "linear_attention"};
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("layer_types[1]"), HasSubstr("got sliding_attention")));
}

TEST(TextConfig, MixtureOfExperts) {
  const TextConfig config = parsed(moe_config());
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_EQ(config.moe_intermediate_size, 32);
  EXPECT_EQ(config.shared_expert_intermediate_size, 48);
  EXPECT_EQ(config.intermediate_size, 0);
  EXPECT_THAT(refusal(moe_config(), {{"num_experts", nullptr}}), HasSubstr("num_experts: field is missing"));
  EXPECT_THAT(refusal(moe_config(), {{"num_experts_per_tok", 9}}), HasSubstr("wanted an integer from 1 to 8"));
  EXPECT_THAT(refusal(dense_config(), {{"num_experts", 8}}), HasSubstr("experts in a dense model type"));
}

TEST(TextConfig, WrappedConfigs) {
  json outer = {{"model_type", "qwen3_5_moe"}, {"architectures", {"Qwen3_5MoeForConditionalGeneration"}}};
  outer["text_config"] = moe_config();
  outer["text_config"].erase("architectures");
  const TextConfig config = parsed(outer);
  EXPECT_EQ(config.model_type, "qwen3_5_moe");
  EXPECT_EQ(config.hidden_size, 64);
  outer["text_config"]["hidden_size"] = "64";
  EXPECT_THAT(refusal(outer), HasSubstr("config.json: text_config: hidden_size: bad value: got \"64\""));
  outer["text_config"]["hidden_size"] = 64;
  outer["text_config"]["model_type"] = "qwen3_5_text";
  EXPECT_THAT(refusal(outer), HasSubstr("text_config: model_type: does not fit the outer model_type"));
  outer["text_config"] = 3;
  EXPECT_THAT(refusal(outer), HasSubstr("text_config: bad value"));
}

// The text config's flag, else the outer one, else false.
TEST(TextConfig, TiedEmbeddings) {
  json outer = {{"model_type", "qwen3_5"}, {"text_config", dense_config()}};
  EXPECT_FALSE(parsed(outer).tie_embeddings);
  outer["tie_word_embeddings"] = true;
  EXPECT_TRUE(parsed(outer).tie_embeddings);
  outer["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(parsed(outer).tie_embeddings);
  outer["tie_word_embeddings"] = false;
  outer["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(parsed(outer).tie_embeddings);
  outer["tie_word_embeddings"] = 1;
  EXPECT_THAT(refusal(outer), HasSubstr("config.json: tie_word_embeddings: bad value"));
}

TEST(TextConfig, EndTokens) {
  json outer = {{"model_type", "qwen3_5"}, {"text_config", dense_config()}, {"eos_token_id", {7, 8}}};
  EXPECT_THAT(parsed(outer).eos_token_ids, ElementsAre(7, 8));
  outer["text_config"]["eos_token_id"] = 9;
  EXPECT_THAT(parsed(outer).eos_token_ids, ElementsAre(9));
  outer["text_config"]["eos_token_id"] = {1, -2};
  EXPECT_THAT(refusal(outer), HasSubstr("eos_token_id: bad value: got [1,-2]"));
}

TEST(TextConfig, RopeParameters) {
  json config = dense_config();
  config["rope_theta"] = 500.0;
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(parsed(config).rope_theta, 500.0);
  EXPECT_EQ(parsed(config).rotary_dim, 128);
  // rope_parameters beats the flat fields where it has the key.
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e7}, {"mrope_section", {11, 11, 10}}};
  EXPECT_EQ(parsed(config).rope_theta, 1e7);
  EXPECT_EQ(parsed(config).rotary_dim, 128);
  config["rope_parameters"]["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(parsed(config).rotary_dim, 64);
  // rope_scaling replaces rope_parameters altogether.
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {11, 11, 10}}};
  EXPECT_EQ(parsed(config).rope_theta, 500.0);
  EXPECT_EQ(parsed(config).rotary_dim, 128);
  config.erase("rope_theta");
  config.erase("partial_rotary_factor");
  EXPECT_EQ(parsed(config).rope_theta, 10000.0);
  EXPECT_EQ(parsed(config).rotary_dim, 64);
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(parsed(config).rope_theta, 1e7);
}

TEST(TextConfig, RefusesRopeItCannotRun) {
  const auto unsupported = ErrorKind::kUnsupported;
  EXPECT_THAT(refusal(dense_config(), {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}}, unsupported),
              HasSubstr("config.json: rope_parameters: rope_type: rope type is not supported: got yarn"));
  EXPECT_THAT(refusal(dense_config(), {{"rope_scaling", {{"type", "linear"}}}}, unsupported),
              HasSubstr("rope_scaling: type: rope type is not supported: got linear"));
  EXPECT_THAT(refusal(dense_config(), {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}}, unsupported),
              HasSubstr("rope_parameters: full_attention: not supported"));
  EXPECT_THAT(refusal(dense_config(), {{"rope_parameters", {{"rope_theta", 0}}}}), HasSubstr("rope_theta: bad value"));
  EXPECT_THAT(refusal(dense_config(), {{"partial_rotary_factor", 1.5}}), HasSubstr("partial_rotary_factor: bad value"));
  EXPECT_THAT(refusal(dense_config(), {{"rope_scaling", "mrope"}}), HasSubstr("rope_scaling: bad value"));
}

TEST(TextConfig, OutputGate) {
  for (const auto& [name, sigmoid] : {std::pair{"silu", false}, {"swish", false}, {"sigmoid", true}}) {
    json config = dense_config();
    config["output_gate_type"] = name;
    EXPECT_EQ(parsed(config).gated_norm_sigmoid, sigmoid) << name;
  }
  EXPECT_THAT(refusal(dense_config(), {{"output_gate_type", "tanh"}}), HasSubstr("output_gate_type: unknown gate"));
  json config = dense_config();
  config["attn_output_gate"] = false;
  EXPECT_FALSE(parsed(config).attn_output_gate);
}

TEST(TextConfig, UnknownModels) {
  EXPECT_THAT(refusal(dense_config(), {{"model_type", "llama"}}),
              AllOf(HasSubstr("model_type: unknown model type: got llama"), HasSubstr("qwen3_5_moe")));
  EXPECT_THAT(refusal(dense_config(), {{"model_type", nullptr}}), HasSubstr("unknown model type: got nothing"));
  EXPECT_THAT(refusal(dense_config(), {{"architectures", {"Qwen3NextForCausalLM"}}}),
              AllOf(HasSubstr("got Qwen3NextForCausalLM"), HasSubstr("Qwen3_5ForCausalLM")));
  EXPECT_THAT(refusal(dense_config(), {{"architectures", {"Qwen3_5MoeForCausalLM"}}}),
              HasSubstr("architecture contradicts model_type"));
  // A text-only export under the wrapped name is common.
  EXPECT_EQ(refusal(dense_config(), {{"architectures", {"Qwen3_5ForConditionalGeneration"}}}), "accepted");
  EXPECT_EQ(refusal(dense_config(), {{"architectures", nullptr}}), "accepted");
}

TEST(TextConfig, ImpossibleValues) {
  EXPECT_THAT(refusal(dense_config(), {{"hidden_size", nullptr}}),
              HasSubstr("config.json: hidden_size: field is missing"));
  for (const json& value : {json(0), json(-1), json(1.5), json(true), json(1ull << 63), json({1})}) {
    EXPECT_THAT(refusal(dense_config(), {{"num_hidden_layers", value}}), HasSubstr("num_hidden_layers: bad value"))
        << value;
  }
  EXPECT_THAT(refusal(dense_config(), {{"rms_norm_eps", 0}}), HasSubstr("wanted a number above 0"));
  EXPECT_THAT(refusal(dense_config(), {{"num_key_value_heads", 3}}), HasSubstr("wanted a divisor of 4"));
  EXPECT_THAT(refusal(dense_config(), {{"linear_num_value_heads", 5}}), HasSubstr("wanted a multiple of 2"));
  EXPECT_THAT(parse_text_config("{\"model_type\":1", "c.json").error().message(), HasSubstr("c.json: not valid JSON"));
  EXPECT_THAT(parse_text_config("{\"model_type\":1}", "c.json").error().message(),
              HasSubstr("c.json: model_type: bad"));
}

TEST(TextConfig, SettingsWithoutAGraph) {
  const auto unsupported = ErrorKind::kUnsupported;
  EXPECT_THAT(refusal(dense_config(), {{"attention_bias", true}}, unsupported), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal(dense_config(), {{"hidden_act", "gelu"}}, unsupported), HasSubstr("got gelu, wanted silu"));
  EXPECT_THAT(refusal(moe_config(), {{"norm_topk_prob", false}}, unsupported), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(refusal(moe_config(), {{"mlp_only_layers", {1}}}, unsupported), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(refusal(moe_config(), {{"decoder_sparse_step", 2}}, unsupported), HasSubstr("decoder_sparse_step"));
  EXPECT_EQ(refusal(moe_config(), {{"mlp_only_layers", json::array()}, {"norm_topk_prob", true}}), "accepted");
}

TEST(GenerationConfig, ReadsWhatIsThere) {
  const auto config = parse_generation_config(
      R"({"eos_token_id":[5,6],"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95})", "g.json");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.95);
  const auto empty = parse_generation_config("{\"temperature\":0,\"top_p\":null}", "g.json");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->temperature, 0.0);
  EXPECT_EQ(empty->top_p, std::nullopt);
  EXPECT_EQ(empty->do_sample, std::nullopt);
  for (const char* bad : {"{\"temperature\":-1}", "{\"top_p\":1.5}", "{\"top_k\":0.5}", "{\"do_sample\":0}"}) {
    EXPECT_FALSE(parse_generation_config(bad, "g.json").ok()) << bad;
  }
  TempDirectory directory;
  EXPECT_TRUE(load_generation_config(directory.path()).ok());
}

TEST(QuantisationHints, FromEitherFileOrBoth) {
  TempDirectory directory;
  auto hints = load_quantisation_hints(directory.path());
  ASSERT_TRUE(hints.ok());
  EXPECT_TRUE(hints->algorithm.empty());
  write_file(directory.file("config.json"),
             R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["a","b*"]}})");
  hints = load_quantisation_hints(directory.path());
  ASSERT_TRUE(hints.ok());
  EXPECT_EQ(hints->method, "modelopt");
  EXPECT_EQ(hints->algorithm, "NVFP4");
  EXPECT_THAT(hints->excluded, ElementsAre("a", "b*"));
  write_file(directory.file("hf_quant_config.json"),
             R"({"quantization":{"quant_algo":"MIXED_PRECISION","exclude_modules":["c","a"],
                 "quantized_layers":{"m.x":{"quant_algo":"FP8"}}}})");
  hints = load_quantisation_hints(directory.path());
  ASSERT_TRUE(hints.ok());
  EXPECT_EQ(hints->algorithm, "MIXED_PRECISION");
  EXPECT_THAT(hints->excluded, ElementsAre("c", "a", "b*"));
  EXPECT_EQ(hints->layer_algorithms.at("m.x"), "FP8");
  write_file(directory.file("hf_quant_config.json"), R"({"quantization":{"exclude_modules":"c"}})");
  EXPECT_THAT(load_quantisation_hints(directory.path()).error().message(), HasSubstr("quantization: exclude_modules"));
}

TEST(PatternCovers, StarsAndWholeModules) {
  EXPECT_TRUE(pattern_covers("lm_head", "lm_head"));
  EXPECT_FALSE(pattern_covers("lm_head", "lm_head2"));
  EXPECT_TRUE(pattern_covers("mtp*", "mtp"));
  EXPECT_TRUE(pattern_covers("mtp*", "mtp.fc"));
  EXPECT_TRUE(pattern_covers("m.0.self_attn", "m.0.self_attn.q_proj"));
  EXPECT_FALSE(pattern_covers("m.0.self_attn", "m.0.self_attention"));
  EXPECT_TRUE(pattern_covers("*.mlp.shared_expert.*", "m.1.mlp.shared_expert.up_proj"));
  EXPECT_TRUE(pattern_covers("*.mlp.shared_expert.*", "m.1.mlp.shared_expert"));
  EXPECT_FALSE(pattern_covers("*.mlp.shared_expert.*", "m.1.mlp.shared_expert_gate"));
  EXPECT_TRUE(pattern_covers("*a*b", "xaayab"));
  EXPECT_FALSE(pattern_covers("*a*b", "xaayabc"));
  EXPECT_FALSE(pattern_covers("", "x"));
}

}  // namespace
}  // namespace assay::checkpoint
