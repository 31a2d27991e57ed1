// attention_block made of the part ops' selected rows.
#include <algorithm>

#include "ops/attention_block/attention_block_rows.h"
#include "ops/run.h"
#include "ops/select.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

struct Buffers {
  View normed;    // [T, hidden]
  View qkv;       // [T, heads * q_width + 2 * kv_heads * head_dim]
  View q;         // [T, heads * head_dim]
  View attended;  // [T, heads * head_dim]
};

Buffers carve(Workspace& workspace, const AttentionBlockDesc& desc, int64_t tokens) {
  const DType activation = desc.norm.activation;
  const int64_t width = int64_t{desc.attention.heads} * desc.attention.head_dim;
  return {workspace.take(activation, tokens, desc.norm.width), workspace.take(activation, tokens, desc.qkv.n),
          workspace.take(activation, tokens, width), workspace.take(activation, tokens, width)};
}

size_t workspace_bytes(const AttentionBlockDesc& desc, const Bucket& bucket, MakeContext& context) {
  Workspace counted;
  carve(counted, desc, bucket.tokens);
  Selector& select = context.selector;
  return counted.used() + std::max({select.workspace_bytes<RmsNormOp>(desc.norm, bucket, context),
                                    select.workspace_bytes<LinearOp>(desc.qkv, bucket, context),
                                    select.workspace_bytes<QkNormRopeOp>(desc.qk_norm_rope, bucket, context),
                                    select.workspace_bytes<AttentionOp>(desc.attention, bucket, context),
                                    select.workspace_bytes<LinearOp>(desc.out, bucket, context)});
}

class Composed : public Plan<AttentionBlockOp::Args> {
 public:
  static Result<std::unique_ptr<Plan<AttentionBlockOp::Args>>> make(const AttentionBlockDesc& desc,
                                                                    const Bucket& bucket,
                                                                    const AttentionBlockOp::Weights& weights,
                                                                    MakeContext& context) {
    Selector& select = context.selector;
    auto plan = std::make_unique<Composed>();
    plan->desc_ = desc;
    ASSAY_ASSIGN(plan->norm_, select.plan<RmsNormOp>(desc.norm, bucket, {weights.norm}, context));
    ASSAY_ASSIGN(plan->qkv_, select.plan<LinearOp>(desc.qkv, bucket, {weights.qkv}, context));
    ASSAY_ASSIGN(plan->qk_norm_rope_,
                 select.plan<QkNormRopeOp>(desc.qk_norm_rope, bucket, {weights.q_norm, weights.k_norm}, context));
    ASSAY_ASSIGN(plan->attention_, select.plan<AttentionOp>(desc.attention, bucket, {}, context));
    ASSAY_ASSIGN(plan->out_, select.plan<LinearOp>(desc.out, bucket, {weights.out}, context));
    return std::unique_ptr<Plan<AttentionBlockOp::Args>>(std::move(plan));
  }

  void enqueue(const AttentionBlockOp::Args& args, const Launch& launch) const override {
    Workspace workspace(launch.workspace);
    const TokenCounts& tokens = args.batch.tokens;
    const Buffers buffers = carve(workspace, desc_, tokens.total);
    Launch part = launch;
    part.workspace = workspace.rest();

    run<RmsNormOp>(norm_, {tokens, args.x, {}, buffers.normed}, part);
    tap(launch, "attention_block.norm", buffers.normed);
    run<LinearOp>(qkv_, {tokens, buffers.normed, {}, buffers.qkv}, part);
    tap(launch, "attention_block.qkv", buffers.qkv);
    run<QkNormRopeOp>(qk_norm_rope_, {args.batch, buffers.qkv, buffers.q, args.cache}, part);
    tap(launch, "attention_block.q", buffers.q);
    run<AttentionOp>(attention_, attention_args(args, buffers), part);
    tap(launch, "attention_block.attention", buffers.attended);
    run<LinearOp>(out_, {tokens, buffers.attended, args.x, args.x}, part);
  }

 private:
  AttentionOp::Args attention_args(const AttentionBlockOp::Args& args, const Buffers& buffers) const {
    AttentionOp::Args attention{args.batch, buffers.q, {}, 0, args.cache, buffers.attended, {}};
    if (desc_.attention.output_gate) {  // a head's gate follows its q
      const int64_t head_dim = desc_.attention.head_dim;
      attention.gate = buffers.qkv.columns(head_dim, desc_.qkv.n - head_dim);
      attention.gate_stride = 2 * head_dim;
    }
    return attention;
  }

  AttentionBlockDesc desc_;
  PlanPtr<RmsNormOp> norm_;
  PlanPtr<LinearOp> qkv_;
  PlanPtr<QkNormRopeOp> qk_norm_rope_;
  PlanPtr<AttentionOp> attention_;
  PlanPtr<LinearOp> out_;
};

Refusal can_run(const AttentionBlockDesc&, const DeviceCaps&) { return std::nullopt; }
OrderId order(const AttentionBlockDesc&) { return OrderId::kNone; }
LayoutId layout(const AttentionBlockDesc&) { return nullptr; }

}  // namespace

const Impl<AttentionBlockOp> kAttentionBlockComposed{"composed", std::nullopt,    order,         layout,
                                                     can_run,    workspace_bytes, Composed::make};

}  // namespace assay::ops
