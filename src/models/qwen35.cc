#include "models/qwen35.h"

#include <algorithm>
#include <utility>

#include "models/qwen35_descs.h"
#include "ops/run.h"
#include "ops/select.h"
#include "ops/workspace.h"

namespace assay::models {
namespace {

using checkpoint::LayerType;
using checkpoint::TextConfig;
using ops::Bucket;
using ops::MakeContext;

struct LayerPlans {
  ops::PlanPtr<ops::AttentionBlockOp> attention;  // one of the two mixers
  ops::PlanPtr<ops::GdnBlockOp> gdn;
  ops::PlanPtr<ops::FfnBlockOp> ffn;
};

struct Buffers {
  ops::View x;       // [T, hidden] residual stream
  ops::View normed;  // [R, hidden] what the head reads
};

Buffers carve(ops::Workspace& workspace, int64_t hidden, DType activation, int64_t tokens, int64_t outputs) {
  return {workspace.take(activation, tokens, hidden), workspace.take(activation, outputs, hidden)};
}

class Forward : public ForwardPlan {
 public:
  void forward(const ForwardArgs& args, const ops::Launch& launch) const override {
    ops::Workspace workspace(launch.workspace);
    const Buffers buffers = carve(workspace, hidden, activation, args.batch.tokens.total, args.outputs.total);
    ops::Launch part = launch;
    part.workspace = workspace.rest();

    ops::run<ops::EmbedOp>(embed, {args.batch.tokens, args.ids, buffers.x}, part);
    ops::tap(part, "embed", buffers.x);
    for (size_t i = 0; i < layers.size(); ++i) {
      part.layer = static_cast<int>(i);
      if (layers[i].attention) {
        ops::run<ops::AttentionBlockOp>(layers[i].attention, {args.batch, buffers.x, args.kv[i]}, part);
      } else {
        ops::run<ops::GdnBlockOp>(layers[i].gdn, {args.batch, buffers.x, args.recurrent[i]}, part);
      }
      ops::run<ops::FfnBlockOp>(layers[i].ffn, {args.batch.tokens, buffers.x}, part);
      ops::tap(part, "layer", buffers.x);
    }
    if (args.outputs.total == 0) return;
    part.layer = static_cast<int>(layers.size());
    ops::run<ops::RmsNormOp>(final_norm, {args.outputs, buffers.x, {}, buffers.normed, args.output_tokens}, part);
    ops::tap(part, "norm", buffers.normed);
    ops::run<ops::LinearOp>(head, {args.outputs, buffers.normed, {}, args.logits}, part);
    ops::tap(part, "logits", args.logits);
  }

  int64_t hidden = 0;
  DType activation = DType::kBf16;
  ops::PlanPtr<ops::EmbedOp> embed;
  std::vector<LayerPlans> layers;
  ops::PlanPtr<ops::RmsNormOp> final_norm;
  ops::PlanPtr<ops::LinearOp> head;
};

class Qwen35 : public Model {
 public:
  Qwen35(const TextConfig& config, Qwen35Weights weights, DType activation)
      : config_(config), weights_(std::move(weights)), activation_(activation) {
    for (LayerType type : config.layer_types) {
      shape_.layers.push_back(type == LayerType::kFullAttention ? StateKind::kKv : StateKind::kRecurrent);
    }
    shape_.kv_heads = static_cast<int32_t>(config.num_kv_heads);
    shape_.head_dim = static_cast<int32_t>(config.head_dim);
    const int64_t values = config.gdn_value_heads * config.gdn_value_dim;
    const int64_t channels = 2 * config.gdn_key_heads * config.gdn_key_dim + values;
    shape_.conv_elements = channels * (config.conv_width - 1);
    shape_.delta_elements = values * config.gdn_key_dim;
    shape_.delta_heads = static_cast<int32_t>(config.gdn_value_heads);
    shape_.delta_columns = static_cast<int32_t>(config.gdn_value_dim);
  }

  const StateShape& state_shape() const override { return shape_; }

  size_t workspace_bytes(const Bucket& bucket, MakeContext& context) const override {
    ops::Selector& select = context.selector;
    const Bucket head_bucket{bucket.outputs, bucket.sequences, bucket.outputs};
    ops::Workspace counted;
    carve(counted, config_.hidden_size, activation_, bucket.tokens, bucket.outputs);
    size_t most = std::max(
        {select.workspace_bytes<ops::EmbedOp>(embed_desc(config_, weights_, activation_), bucket, context),
         select.workspace_bytes<ops::RmsNormOp>(final_norm_desc(config_, activation_), head_bucket, context),
         select.workspace_bytes<ops::LinearOp>(head_desc(config_, weights_, activation_), head_bucket, context)});
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
      const Qwen35LayerWeights& layer = weights_.layers[i];
      const size_t mixer = is_attention(i)
                               ? select.workspace_bytes<ops::AttentionBlockOp>(
                                     attention_block_desc(config_, layer.attention, activation_), bucket, context)
                               : select.workspace_bytes<ops::GdnBlockOp>(
                                     gdn_block_desc(config_, layer.gdn, activation_), bucket, context);
      const size_t ffn =
          select.workspace_bytes<ops::FfnBlockOp>(ffn_block_desc(config_, layer.ffn, activation_), bucket, context);
      most = std::max({most, mixer, ffn});
    }
    return counted.used() + most;
  }

  Result<std::unique_ptr<ForwardPlan>> plan(const Bucket& bucket, MakeContext& context) const override {
    ops::Selector& select = context.selector;
    const Bucket head_bucket{bucket.outputs, bucket.sequences, bucket.outputs};
    auto forward = std::make_unique<Forward>();
    forward->hidden = config_.hidden_size;
    forward->activation = activation_;
    ASSAY_ASSIGN(forward->embed, select.plan<ops::EmbedOp>(embed_desc(config_, weights_, activation_), bucket,
                                                           {weights_.embed.id}, context));
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
      ASSAY_ASSIGN(LayerPlans plans, plan_layer(i, bucket, context));
      forward->layers.push_back(std::move(plans));
    }
    ASSAY_ASSIGN(forward->final_norm, select.plan<ops::RmsNormOp>(final_norm_desc(config_, activation_), head_bucket,
                                                                  {weights_.final_norm.id}, context));
    ASSAY_ASSIGN(forward->head, select.plan<ops::LinearOp>(head_desc(config_, weights_, activation_), head_bucket,
                                                           {weights_.head.id}, context));
    return std::unique_ptr<ForwardPlan>(std::move(forward));
  }

 private:
  bool is_attention(size_t layer) const { return config_.layer_types[layer] == LayerType::kFullAttention; }

  Result<LayerPlans> plan_layer(size_t index, const Bucket& bucket, MakeContext& context) const {
    ops::Selector& select = context.selector;
    const Qwen35LayerWeights& layer = weights_.layers[index];
    LayerPlans plans;
    if (is_attention(index)) {
      const Qwen35AttentionWeights& w = layer.attention;
      ASSAY_ASSIGN(plans.attention, select.plan<ops::AttentionBlockOp>(
                                        attention_block_desc(config_, w, activation_), bucket,
                                        {layer.input_norm.id, w.qkv.id, w.q_norm.id, w.k_norm.id, w.out.id}, context));
    } else {
      const Qwen35GdnWeights& w = layer.gdn;
      ASSAY_ASSIGN(plans.gdn, select.plan<ops::GdnBlockOp>(gdn_block_desc(config_, w, activation_), bucket,
                                                           {layer.input_norm.id, w.in_proj.id, w.gates.id, w.conv.id,
                                                            w.a_log.id, w.dt_bias.id, w.norm.id, w.out_proj.id},
                                                           context));
    }
    const Qwen35FfnWeights& w = layer.ffn;
    ASSAY_ASSIGN(plans.ffn, select.plan<ops::FfnBlockOp>(ffn_block_desc(config_, w, activation_), bucket,
                                                         {layer.post_norm.id, w.gate_up.id, w.down.id, w.router.id,
                                                          w.shared_gate.id, w.experts.id},
                                                         context));
    return plans;
  }

  TextConfig config_;
  Qwen35Weights weights_;
  DType activation_;
  StateShape shape_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_qwen35(const TextConfig& config, checkpoint::Binder& binder, const AddWeight& add,
                                           DType activation) {
  ASSAY_ASSIGN(Qwen35Weights weights, bind_qwen35(config, binder, add));
  return std::unique_ptr<Model>(std::make_unique<Qwen35>(config, std::move(weights), activation));
}

}  // namespace assay::models
