#include "models/qwen35_descs.h"

#include <cmath>

namespace assay::models {
namespace {

using checkpoint::TextConfig;

ops::LinearDesc linear(int64_t n, int64_t k, numeric::WeightFormat format, DType activation, DType output) {
  return {n, k, format, ops::weight_only_lane(format), activation, output};
}

ops::RmsNormDesc zero_centred(int64_t width, const TextConfig& config, DType activation) {
  return {ops::NormKind::kZeroCentred, width, 1, static_cast<float>(config.rms_norm_eps), false, activation};
}

ops::MlpDesc mlp(int64_t hidden, int64_t width, const Qwen35FfnWeights& weights, DType activation) {
  return {linear(2 * width, hidden, weights.gate_up.format, activation, activation),
          {width, activation},
          linear(hidden, width, weights.down.format, activation, activation)};
}

}  // namespace

ops::EmbedDesc embed_desc(const TextConfig& config, const Qwen35Weights& weights, DType activation) {
  return {config.vocab_size, config.hidden_size, weights.embed.format, activation};
}

ops::RmsNormDesc final_norm_desc(const TextConfig& config, DType activation) {
  return zero_centred(config.hidden_size, config, activation);
}

ops::LinearDesc head_desc(const TextConfig& config, const Qwen35Weights& weights, DType activation) {
  return linear(config.vocab_size, config.hidden_size, weights.head.format, activation, DType::kF32);
}

ops::AttentionBlockDesc attention_block_desc(const TextConfig& config, const Qwen35AttentionWeights& weights,
                                             DType activation) {
  const auto heads = static_cast<int32_t>(config.num_heads);
  const auto kv_heads = static_cast<int32_t>(config.num_kv_heads);
  const auto head_dim = static_cast<int32_t>(config.head_dim);
  const int64_t width = config.num_heads * config.head_dim;
  const int64_t qkv = width * (config.attn_output_gate ? 2 : 1) + 2 * config.num_kv_heads * config.head_dim;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  ops::AttentionBlockDesc desc;
  desc.norm = zero_centred(config.hidden_size, config, activation);
  desc.qkv = linear(qkv, config.hidden_size, weights.qkv.format, activation, activation);
  desc.qk_norm_rope = {heads,
                       kv_heads,
                       head_dim,
                       static_cast<int32_t>(config.rotary_dim),
                       config.rope_theta,
                       eps,
                       config.attn_output_gate,
                       activation,
                       activation};
  desc.attention = {heads, kv_heads, head_dim, scale, config.attn_output_gate, activation, activation};
  desc.out = linear(config.hidden_size, width, weights.out.format, activation, activation);
  return desc;
}

ops::GdnBlockDesc gdn_block_desc(const TextConfig& config, const Qwen35GdnWeights& weights, DType activation) {
  const auto key_heads = static_cast<int32_t>(config.gdn_key_heads);
  const auto value_heads = static_cast<int32_t>(config.gdn_value_heads);
  const auto key_dim = static_cast<int32_t>(config.gdn_key_dim);
  const auto value_dim = static_cast<int32_t>(config.gdn_value_dim);
  const int64_t values = config.gdn_value_heads * config.gdn_value_dim;
  ops::GdnBlockDesc desc;
  desc.norm = zero_centred(config.hidden_size, config, activation);
  desc.conv_gates = {key_heads, value_heads, key_dim, value_dim, static_cast<int32_t>(config.conv_width), activation};
  desc.in_proj =
      linear(desc.conv_gates.channels() + values, config.hidden_size, weights.in_proj.format, activation, activation);
  desc.gates = linear(2 * config.gdn_value_heads, config.hidden_size, weights.gates.format, activation, activation);
  desc.gated_delta = {key_heads, value_heads, key_dim, value_dim, activation};
  desc.gated_norm = {ops::NormKind::kGated,     config.gdn_value_dim,
                     config.gdn_value_heads,    static_cast<float>(config.rms_norm_eps),
                     config.gated_norm_sigmoid, activation};
  desc.out_proj = linear(config.hidden_size, values, weights.out_proj.format, activation, activation);
  return desc;
}

ops::FfnBlockDesc ffn_block_desc(const TextConfig& config, const Qwen35FfnWeights& weights, DType activation) {
  ops::FfnBlockDesc desc;
  desc.norm = zero_centred(config.hidden_size, config, activation);
  if (config.num_experts == 0) {
    desc.mlp = mlp(config.hidden_size, config.intermediate_size, weights, activation);
    return desc;
  }
  const auto experts = static_cast<int32_t>(config.num_experts);
  const auto top_k = static_cast<int32_t>(config.experts_per_token);
  const bool shared = config.shared_expert_intermediate_size > 0;
  if (shared) desc.mlp = mlp(config.hidden_size, config.shared_expert_intermediate_size, weights, activation);
  desc.router = {config.hidden_size, experts, top_k, shared, weights.router.format, activation};
  desc.experts = {config.hidden_size,
                  config.moe_intermediate_size,
                  experts,
                  top_k,
                  weights.experts.format,
                  ops::weight_only_lane(weights.experts.format),
                  activation};
  return desc;
}

}  // namespace assay::models
