// Writes a small random Qwen3.5 MoE checkpoint: one gated-delta-net and one attention layer a pair, NVFP4 experts.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/testing.h"
#include "numeric/nvfp4.h"

namespace assay::testing {

struct RandomModelShape {
  int64_t hidden = 64;
  int64_t layers = 2;  // odd ones attend
  int64_t vocab = 512;
  int64_t context = 512;
  int64_t heads = 4, kv_heads = 2, head_dim = 32;
  int64_t key_heads = 2, value_heads = 4, delta_dim = 16;
  int64_t experts = 8, top_k = 2, intermediate = 32;
  float head_scale = 1.0f;  // small: near-tied logits
  uint64_t seed = 1;
};

class RandomModel {
 public:
  explicit RandomModel(const RandomModelShape& shape) : shape_(shape), random_(shape.seed) {
    write_config();
    const int64_t hidden = shape.hidden;
    matrix("model.embed_tokens", shape.vocab, hidden, 1.0f);
    matrix("lm_head", shape.vocab, hidden, shape.head_scale / std::sqrt(static_cast<float>(hidden)));
    vector("model.norm.weight", hidden, 0.1f, 0.0f);
    for (int64_t i = 0; i < shape.layers; ++i) layer("model.layers." + std::to_string(i) + ".", i % 2 == 1);
    writer_.write(directory_.file("model.safetensors"));
  }

  const std::string& path() const { return directory_.path(); }

 private:
  void write_config() {
    const RandomModelShape& s = shape_;
    std::string types;
    for (int64_t i = 0; i < s.layers; ++i) {
      types += fmt::format("{}\"{}\"", i ? "," : "", i % 2 ? "full_attention" : "linear_attention");
    }
    checkpoint::testing::write_file(
        directory_.file("config.json"),
        fmt::format(R"({{"architectures":["Qwen3_5MoeForCausalLM"],"model_type":"qwen3_5_moe_text","hidden_size":{},
"num_hidden_layers":{},"layer_types":[{}],"vocab_size":{},"max_position_embeddings":{},"num_attention_heads":{},
"num_key_value_heads":{},"head_dim":{},"partial_rotary_factor":0.5,"rope_theta":10000,"rms_norm_eps":1e-6,
"linear_num_key_heads":{},"linear_num_value_heads":{},"linear_key_head_dim":{},"linear_value_head_dim":{},
"linear_conv_kernel_dim":4,"num_experts":{},"num_experts_per_tok":{},"moe_intermediate_size":{},
"shared_expert_intermediate_size":{},"tie_word_embeddings":false,"hidden_act":"silu","eos_token_id":0,
"mtp_num_hidden_layers":0}})",
                    s.hidden, s.layers, types, s.vocab, s.context, s.heads, s.kv_heads, s.head_dim, s.key_heads,
                    s.value_heads, s.delta_dim, s.delta_dim, s.experts, s.top_k, s.intermediate, s.intermediate));
  }

  void layer(const std::string& base, bool attention) {
    const RandomModelShape& s = shape_;
    vector(base + "input_layernorm.weight", s.hidden, 0.1f, 0.0f);
    vector(base + "post_attention_layernorm.weight", s.hidden, 0.1f, 0.0f);
    if (attention) {
      linear(base + "self_attn.q_proj", 2 * s.heads * s.head_dim, s.hidden);
      linear(base + "self_attn.k_proj", s.kv_heads * s.head_dim, s.hidden);
      linear(base + "self_attn.v_proj", s.kv_heads * s.head_dim, s.hidden);
      linear(base + "self_attn.o_proj", s.hidden, s.heads * s.head_dim);
      vector(base + "self_attn.q_norm.weight", s.head_dim, 0.1f, 0.5f);
      vector(base + "self_attn.k_norm.weight", s.head_dim, 0.1f, 0.5f);
    } else {
      const int64_t values = s.value_heads * s.delta_dim;
      const int64_t channels = 2 * s.key_heads * s.delta_dim + values;
      linear(base + "linear_attn.in_proj_qkv", channels, s.hidden);
      linear(base + "linear_attn.in_proj_z", values, s.hidden);
      linear(base + "linear_attn.in_proj_b", s.value_heads, s.hidden);
      linear(base + "linear_attn.in_proj_a", s.value_heads, s.hidden);
      writer_.add_bf16(base + "linear_attn.conv1d.weight", {channels, 1, 4}, normal(channels * 4, 0.5f, 0.0f));
      vector(base + "linear_attn.A_log", s.value_heads, 0.5f, 0.0f);
      vector(base + "linear_attn.dt_bias", s.value_heads, 0.5f, 0.0f);
      vector(base + "linear_attn.norm.weight", s.delta_dim, 0.1f, 1.0f);
      linear(base + "linear_attn.out_proj", s.hidden, values);
    }
    linear(base + "mlp.gate", s.experts, s.hidden);
    for (int64_t e = 0; e < s.experts; ++e) expert(base + "mlp.experts." + std::to_string(e) + ".");
    linear(base + "mlp.shared_expert.gate_proj", s.intermediate, s.hidden);
    linear(base + "mlp.shared_expert.up_proj", s.intermediate, s.hidden);
    linear(base + "mlp.shared_expert.down_proj", s.hidden, s.intermediate);
    linear(base + "mlp.shared_expert_gate", 1, s.hidden);
  }

  void expert(const std::string& base) {
    nvfp4(base + "gate_proj", shape_.intermediate, shape_.hidden);
    nvfp4(base + "up_proj", shape_.intermediate, shape_.hidden);
    nvfp4(base + "down_proj", shape_.hidden, shape_.intermediate);
  }

  void nvfp4(const std::string& base, int64_t rows, int64_t cols) {
    const auto values = normal(rows * cols, 1.0f / std::sqrt(static_cast<float>(cols)), 0.0f);
    writer_.add_nvfp4(base, numeric::nvfp4_quantise(values.data(), rows, cols));
  }
  void linear(const std::string& base, int64_t rows, int64_t cols) {
    matrix(base, rows, cols, 1.0f / std::sqrt(static_cast<float>(cols)));
  }
  void matrix(const std::string& base, int64_t rows, int64_t cols, float scale) {
    writer_.add_bf16(base + ".weight", {rows, cols}, normal(rows * cols, scale, 0.0f));
  }
  void vector(const std::string& name, int64_t count, float scale, float mean) {
    writer_.add_bf16(name, {count}, normal(count, scale, mean));
  }
  std::vector<float> normal(int64_t count, float scale, float mean) {
    std::normal_distribution<float> distribution(mean, scale);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = distribution(random_);
    return values;
  }

  RandomModelShape shape_;
  std::mt19937_64 random_;
  checkpoint::testing::TempDirectory directory_;
  checkpoint::testing::SafetensorsWriter writer_;
};

}  // namespace assay::testing
