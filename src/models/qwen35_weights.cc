#include "models/qwen35_weights.h"

#include <string>
#include <utility>

namespace assay::models {
namespace {

using checkpoint::TextConfig;
using numeric::EncodedMatrix;

// One shard of a stacked weight.
struct Shard {
  std::string name;
  int64_t rows = 0;
};

class Names {
 public:
  Names(const TextConfig& config, checkpoint::Binder& binder, const AddWeight& add, std::string prefix)
      : config_(config), binder_(binder), add_(add), prefix_(std::move(prefix)) {}

  Result<Qwen35Weights> bind() {
    Qwen35Weights weights;
    ASSAY_ASSIGN(weights.embed, matrix(prefix_ + "embed_tokens", config_.vocab_size, config_.hidden_size));
    ASSAY_ASSIGN(weights.final_norm, vector(prefix_ + "norm.weight", config_.hidden_size));
    weights.head = weights.embed;
    if (!config_.tie_embeddings) {
      ASSAY_ASSIGN(weights.head, matrix("lm_head", config_.vocab_size, config_.hidden_size));
    }
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      ASSAY_ASSIGN(Qwen35LayerWeights layer, bind_layer(i));
      weights.layers.push_back(layer);
    }
    ASSAY_TRY(binder_.keep("mtp.", "the draft head"));
    binder_.skip("model.visual.", "vision tower: text only");
    ASSAY_TRY(binder_.finish());
    return weights;
  }

 private:
  Result<Qwen35LayerWeights> bind_layer(int64_t index) {
    const std::string base = prefix_ + "layers." + std::to_string(index) + ".";
    Qwen35LayerWeights layer;
    ASSAY_ASSIGN(layer.input_norm, vector(base + "input_layernorm.weight", config_.hidden_size));
    ASSAY_ASSIGN(layer.post_norm, vector(base + "post_attention_layernorm.weight", config_.hidden_size));
    if (config_.layer_types[static_cast<size_t>(index)] == checkpoint::LayerType::kFullAttention) {
      ASSAY_ASSIGN(layer.attention, bind_attention(base + "self_attn."));
    } else {
      ASSAY_ASSIGN(layer.gdn, bind_gdn(base + "linear_attn."));
    }
    ASSAY_ASSIGN(layer.ffn, bind_ffn(base + "mlp."));
    return layer;
  }

  Result<Qwen35AttentionWeights> bind_attention(const std::string& base) {
    const int64_t q_rows = config_.num_heads * config_.head_dim;
    const int64_t kv_rows = config_.num_kv_heads * config_.head_dim;
    Qwen35AttentionWeights weights;
    ASSAY_ASSIGN(weights.qkv, stacked(base + "qkv", config_.hidden_size,
                                      {{base + "q_proj", q_rows * (config_.attn_output_gate ? 2 : 1)},
                                       {base + "k_proj", kv_rows},
                                       {base + "v_proj", kv_rows}}));
    ASSAY_ASSIGN(weights.q_norm, vector(base + "q_norm.weight", config_.head_dim));
    ASSAY_ASSIGN(weights.k_norm, vector(base + "k_norm.weight", config_.head_dim));
    ASSAY_ASSIGN(weights.out, matrix(base + "o_proj", config_.hidden_size, q_rows));
    return weights;
  }

  Result<Qwen35GdnWeights> bind_gdn(const std::string& base) {
    const int64_t heads = config_.gdn_value_heads;
    const int64_t values = heads * config_.gdn_value_dim;
    const int64_t channels = 2 * config_.gdn_key_heads * config_.gdn_key_dim + values;
    Qwen35GdnWeights weights;
    ASSAY_ASSIGN(weights.in_proj, stacked(base + "in_proj", config_.hidden_size,
                                          {{base + "in_proj_qkv", channels}, {base + "in_proj_z", values}}));
    ASSAY_ASSIGN(weights.gates, stacked(base + "gates", config_.hidden_size,
                                        {{base + "in_proj_b", heads}, {base + "in_proj_a", heads}}));
    ASSAY_ASSIGN(weights.conv, dense(base + "conv1d.weight", {channels, 1, config_.conv_width}, channels));
    ASSAY_ASSIGN(weights.a_log, vector(base + "A_log", heads));
    ASSAY_ASSIGN(weights.dt_bias, vector(base + "dt_bias", heads));
    ASSAY_ASSIGN(weights.norm, vector(base + "norm.weight", config_.gdn_value_dim));
    ASSAY_ASSIGN(weights.out_proj, matrix(base + "out_proj", config_.hidden_size, values));
    return weights;
  }

  Result<Qwen35FfnWeights> bind_ffn(const std::string& base) {
    Qwen35FfnWeights weights;
    if (config_.num_experts == 0) {
      ASSAY_TRY(bind_mlp(base, config_.intermediate_size, weights));
      return weights;
    }
    ASSAY_ASSIGN(weights.router, matrix(base + "gate", config_.num_experts, config_.hidden_size));
    ASSAY_ASSIGN(weights.experts, bind_experts(base + "experts"));
    if (config_.shared_expert_intermediate_size > 0) {
      ASSAY_ASSIGN(weights.shared_gate, matrix(base + "shared_expert_gate", 1, config_.hidden_size));
      if (weights.shared_gate.format != weights.router.format) {
        return two_formats(base + "gate", base + "shared_expert_gate.weight", weights.shared_gate.format,
                           base + "gate.weight", weights.router.format);
      }
      ASSAY_TRY(bind_mlp(base + "shared_expert.", config_.shared_expert_intermediate_size, weights));
    }
    return weights;
  }

  Result<void> bind_mlp(const std::string& base, int64_t width, Qwen35FfnWeights& weights) {
    ASSAY_ASSIGN(weights.gate_up, stacked(base + "gate_up", config_.hidden_size,
                                          {{base + "gate_proj", width}, {base + "up_proj", width}}));
    ASSAY_ASSIGN(weights.down, matrix(base + "down_proj", config_.hidden_size, width));
    return {};
  }

  // Gate, up and down of every expert: from tensors of each expert, or from two tensors that fuse all of them.
  Result<BoundWeight> bind_experts(const std::string& base) {
    const bool fused = binder_.has(base + ".gate_up_proj") || binder_.has(base + ".down_proj");
    ops::WeightSource source{base, {}};
    for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
      ASSAY_TRY(fused ? add_fused_expert(base, expert, source)
                      : add_expert(base + "." + std::to_string(expert), source));
    }
    return added(std::move(source));
  }

  Result<void> add_expert(const std::string& base, ops::WeightSource& source) {
    const int64_t width = config_.moe_intermediate_size;
    ASSAY_ASSIGN(EncodedMatrix gate, binder_.matrix(base + ".gate_proj", width, config_.hidden_size));
    ASSAY_ASSIGN(EncodedMatrix up, binder_.matrix(base + ".up_proj", width, config_.hidden_size));
    ASSAY_ASSIGN(EncodedMatrix down, binder_.matrix(base + ".down_proj", config_.hidden_size, width));
    for (EncodedMatrix* matrix : {&gate, &up, &down}) source.matrices.push_back(std::move(*matrix));
    return {};
  }

  Result<void> add_fused_expert(const std::string& base, int64_t expert, ops::WeightSource& source) {
    const int64_t width = config_.moe_intermediate_size;
    const int64_t hidden = config_.hidden_size;
    const int64_t count = config_.num_experts;
    ASSAY_ASSIGN(EncodedMatrix gate,
                 binder_.expert_slice(base + ".gate_up_proj", {count, 2 * width, hidden, expert, 0, width}));
    ASSAY_ASSIGN(EncodedMatrix up,
                 binder_.expert_slice(base + ".gate_up_proj", {count, 2 * width, hidden, expert, width, width}));
    ASSAY_ASSIGN(EncodedMatrix down,
                 binder_.expert_slice(base + ".down_proj", {count, hidden, width, expert, 0, hidden}));
    for (EncodedMatrix* matrix : {&gate, &up, &down}) source.matrices.push_back(std::move(*matrix));
    return {};
  }

  Result<BoundWeight> matrix(const std::string& name, int64_t rows, int64_t cols) {
    return stacked(name, cols, {{name, rows}});
  }

  Result<BoundWeight> stacked(const std::string& name, int64_t cols, const std::vector<Shard>& shards) {
    ops::WeightSource source{name, {}};
    for (const Shard& shard : shards) {
      ASSAY_ASSIGN(EncodedMatrix bound, binder_.matrix(shard.name, shard.rows, cols));
      source.matrices.push_back(std::move(bound));
    }
    return added(std::move(source));
  }

  Result<BoundWeight> vector(const std::string& name, int64_t count) { return dense(name, {count}, 1); }

  Result<BoundWeight> dense(const std::string& name, const Shape& shape, int64_t rows) {
    ASSAY_ASSIGN(EncodedMatrix bound, binder_.dense(name, shape, rows));
    return added(ops::WeightSource{name, {std::move(bound)}});
  }

  // All matrices of one weight must be of one format: they run as one kernel.
  Result<BoundWeight> added(ops::WeightSource source) {
    const EncodedMatrix& first = source.matrices.front();
    for (const EncodedMatrix& other : source.matrices) {
      if (other.format == first.format) continue;
      return two_formats(source.name, other.name, other.format, first.name, first.format);
    }
    const numeric::WeightFormat format = first.format;
    return BoundWeight{add_(std::move(source)), format};
  }

  Error two_formats(const std::string& weight, const std::string& odd, numeric::WeightFormat odd_format,
                    const std::string& first, numeric::WeightFormat format) const {
    return {ErrorKind::kCheckpoint,
            "matrices that run as one are of two formats",
            binder_.where() + ": " + weight,
            fmt::format("{} in {}", odd, numeric::weight_format_name(odd_format)),
            fmt::format("{} as {}", numeric::weight_format_name(format), first),
            ""};
  }

  const TextConfig& config_;
  checkpoint::Binder& binder_;
  const AddWeight& add_;
  const std::string prefix_;
};

}  // namespace

Result<Qwen35Weights> bind_qwen35(const TextConfig& config, checkpoint::Binder& binder, const AddWeight& add) {
  return Names(config, binder, add, binder.text_prefix()).bind();
}

}  // namespace assay::models
