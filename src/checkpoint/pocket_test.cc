// The shipped model opens, says what its card says, and every tensor of it can be bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_binder.h"
#include "numeric/decode.h"

namespace assay::checkpoint {
namespace {

using ::testing::ElementsAre;

constexpr const char* kDirectory = "models/pocket";

TEST(Pocket, Config) {
  const auto config = load_text_config(kDirectory);
  ASSERT_TRUE(config.ok()) << config.error().message();
  const auto linear = LayerType::kLinearAttention;
  const auto full = LayerType::kFullAttention;
  EXPECT_THAT(config->layer_types, ElementsAre(linear, linear, full, linear, linear, full));
  EXPECT_EQ(config->hidden_size, 256);
  EXPECT_EQ(config->vocab_size, 3072);
  EXPECT_EQ(config->max_positions, 8192);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->rope_theta, 1e7);
  EXPECT_EQ(config->gdn_value_heads, 4);
  EXPECT_EQ(config->num_experts, 16);
  EXPECT_EQ(config->experts_per_token, 4);
  EXPECT_EQ(config->mtp_layers, 1);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3047));
  const auto generation = load_generation_config(kDirectory);
  ASSERT_TRUE(generation.ok()) << generation.error().message();
  EXPECT_THAT(generation->eos_token_ids, ElementsAre(3049, 3047));
  EXPECT_EQ(generation->temperature, 0.6);
}

class PocketBinding : public ::testing::Test {
 protected:
  void SetUp() override {
    auto config = load_text_config(kDirectory);
    ASSERT_TRUE(config.ok()) << config.error().message();
    config_ = *config;
  }
  void expect_matrix(CheckpointBinder& binder, const std::string& base, int64_t rows, int64_t cols,
                     numeric::WeightFormat format) {
    const auto matrix = binder.matrix(base, rows, cols);
    ASSERT_TRUE(matrix.ok()) << matrix.error().message();
    EXPECT_EQ(matrix->format, format) << base;
  }
  void expect_plain(CheckpointBinder& binder, const std::string& base, int64_t rows, int64_t cols) {
    expect_matrix(binder, base, rows, cols, numeric::WeightFormat::kBf16);
  }
  void expect_vector(CheckpointBinder& binder, const std::string& name, const Shape& shape) {
    const auto values = binder.vector(name, shape);
    ASSERT_TRUE(values.ok()) << values.error().message();
  }
  void bind_mixer(CheckpointBinder& binder, const std::string& layer, LayerType type) {
    const TextConfig& c = config_;
    if (type == LayerType::kFullAttention) {
      const std::string at = layer + "self_attn.";
      expect_plain(binder, at + "q_proj", 2 * c.num_heads * c.head_dim, c.hidden_size);
      expect_plain(binder, at + "k_proj", c.num_kv_heads * c.head_dim, c.hidden_size);
      expect_plain(binder, at + "v_proj", c.num_kv_heads * c.head_dim, c.hidden_size);
      expect_plain(binder, at + "o_proj", c.hidden_size, c.num_heads * c.head_dim);
      expect_vector(binder, at + "q_norm.weight", {c.head_dim});
      expect_vector(binder, at + "k_norm.weight", {c.head_dim});
      return;
    }
    const std::string at = layer + "linear_attn.";
    const int64_t value_dim = c.gdn_value_heads * c.gdn_value_dim;
    const int64_t channels = 2 * c.gdn_key_heads * c.gdn_key_dim + value_dim;
    expect_plain(binder, at + "in_proj_qkv", channels, c.hidden_size);
    expect_plain(binder, at + "in_proj_z", value_dim, c.hidden_size);
    expect_plain(binder, at + "in_proj_a", c.gdn_value_heads, c.hidden_size);
    expect_plain(binder, at + "in_proj_b", c.gdn_value_heads, c.hidden_size);
    expect_plain(binder, at + "out_proj", c.hidden_size, value_dim);
    expect_vector(binder, at + "conv1d.weight", {channels, 1, c.conv_width});
    expect_vector(binder, at + "A_log", {c.gdn_value_heads});
    expect_vector(binder, at + "dt_bias", {c.gdn_value_heads});
    expect_vector(binder, at + "norm.weight", {c.gdn_value_dim});
  }
  void bind_layer(CheckpointBinder& binder, const std::string& layer, LayerType type, numeric::WeightFormat experts) {
    const TextConfig& c = config_;
    bind_mixer(binder, layer, type);
    expect_vector(binder, layer + "input_layernorm.weight", {c.hidden_size});
    expect_vector(binder, layer + "post_attention_layernorm.weight", {c.hidden_size});
    const std::string mlp = layer + "mlp.";
    expect_plain(binder, mlp + "gate", c.num_experts, c.hidden_size);
    expect_plain(binder, mlp + "shared_expert_gate", 1, c.hidden_size);
    const int64_t shared = c.shared_expert_intermediate_size;
    expect_plain(binder, mlp + "shared_expert.gate_proj", shared, c.hidden_size);
    expect_plain(binder, mlp + "shared_expert.up_proj", shared, c.hidden_size);
    expect_plain(binder, mlp + "shared_expert.down_proj", c.hidden_size, shared);
    for (int64_t e = 0; e < c.num_experts; ++e) {
      const std::string expert = mlp + "experts." + std::to_string(e) + ".";
      expect_matrix(binder, expert + "gate_proj", c.moe_intermediate_size, c.hidden_size, experts);
      expect_matrix(binder, expert + "up_proj", c.moe_intermediate_size, c.hidden_size, experts);
      expect_matrix(binder, expert + "down_proj", c.hidden_size, c.moe_intermediate_size, experts);
    }
  }
  void bind_trunk(CheckpointBinder& binder) {
    expect_plain(binder, "model.embed_tokens", config_.vocab_size, config_.hidden_size);
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      bind_layer(binder, "model.layers." + std::to_string(i) + ".", config_.layer_types[i],
                 numeric::WeightFormat::kNvfp4);
    }
    expect_vector(binder, "model.norm.weight", {config_.hidden_size});
  }

  TextConfig config_;
};

TEST_F(PocketBinding, EveryTensorIsBound) {
  const auto checkpoint = Checkpoint::open(kDirectory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->tensors().size(), 1309u);
  EXPECT_EQ(text_prefix(*checkpoint), "model.");
  const auto hints = load_quantisation_hints(kDirectory);
  ASSERT_TRUE(hints.ok()) << hints.error().message();
  EXPECT_EQ(hints->algorithm, "NVFP4");
  CheckpointBinder binder(*checkpoint, *hints);
  bind_trunk(binder);
  EXPECT_FALSE(binder.finish().ok());  // the draft head is left
  bind_layer(binder, "mtp.layers.0.", LayerType::kFullAttention, numeric::WeightFormat::kBf16);
  expect_plain(binder, "mtp.fc", config_.hidden_size, 2 * config_.hidden_size);
  for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
    expect_vector(binder, std::string("mtp.") + norm + ".weight", {config_.hidden_size});
  }
  const auto finished = binder.finish();
  EXPECT_TRUE(finished.ok()) << finished.error().message();
  EXPECT_EQ(binder.hint_differences(), "");
}

TEST_F(PocketBinding, TheDraftHeadCanBeKeptUnused) {
  const auto checkpoint = Checkpoint::open(kDirectory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  CheckpointBinder binder(*checkpoint, {});
  bind_trunk(binder);
  ASSERT_TRUE(binder.keep("mtp.", "speculative decoding is off").ok());
  EXPECT_TRUE(binder.finish().ok());
}

}  // namespace
}  // namespace assay::checkpoint
