// gdn_block made of the part ops' selected rows.
#include <algorithm>

#include "ops/gdn_block/gdn_block_rows.h"
#include "ops/run.h"
#include "ops/select.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

struct Buffers {
  View normed;   // [T, hidden]
  View in_proj;  // [T, q | k | v | z]
  View gates;    // [T, b | a]
  View q, k;     // F32 [T, key_heads * key_dim]
  View v;        // [T, value_heads * value_dim]
  View g, beta;  // F32 [T, value_heads]
  View delta;    // [T, value_heads * value_dim]
};

Buffers carve(Workspace& workspace, const GdnBlockDesc& desc, int64_t tokens) {
  const DType activation = desc.norm.activation;
  const GatedDeltaDesc& delta = desc.gated_delta;
  const int64_t key_width = int64_t{delta.key_heads} * delta.key_dim;
  const int64_t value_width = int64_t{delta.value_heads} * delta.value_dim;
  Buffers buffers;
  buffers.normed = workspace.take(activation, tokens, desc.norm.width);
  buffers.in_proj = workspace.take(activation, tokens, desc.in_proj.n);
  buffers.gates = workspace.take(activation, tokens, desc.gates.n);
  buffers.q = workspace.take(DType::kF32, tokens, key_width);
  buffers.k = workspace.take(DType::kF32, tokens, key_width);
  buffers.v = workspace.take(activation, tokens, value_width);
  buffers.g = workspace.take(DType::kF32, tokens, delta.value_heads);
  buffers.beta = workspace.take(DType::kF32, tokens, delta.value_heads);
  buffers.delta = workspace.take(activation, tokens, value_width);
  return buffers;
}

size_t workspace_bytes(const GdnBlockDesc& desc, const Bucket& bucket, MakeContext& context) {
  Workspace counted;
  carve(counted, desc, bucket.tokens);
  Selector& select = context.selector;
  return counted.used() + std::max({select.workspace_bytes<RmsNormOp>(desc.norm, bucket, context),
                                    select.workspace_bytes<LinearOp>(desc.in_proj, bucket, context),
                                    select.workspace_bytes<LinearOp>(desc.gates, bucket, context),
                                    select.workspace_bytes<ConvGatesOp>(desc.conv_gates, bucket, context),
                                    select.workspace_bytes<GatedDeltaOp>(desc.gated_delta, bucket, context),
                                    select.workspace_bytes<RmsNormOp>(desc.gated_norm, bucket, context),
                                    select.workspace_bytes<LinearOp>(desc.out_proj, bucket, context)});
}

class Composed : public Plan<GdnBlockOp::Args> {
 public:
  static Result<std::unique_ptr<Plan<GdnBlockOp::Args>>> make(const GdnBlockDesc& desc, const Bucket& bucket,
                                                              const GdnBlockOp::Weights& weights,
                                                              MakeContext& context) {
    Selector& select = context.selector;
    auto plan = std::make_unique<Composed>();
    plan->desc_ = desc;
    ASSAY_ASSIGN(plan->norm_, select.plan<RmsNormOp>(desc.norm, bucket, {weights.norm}, context));
    ASSAY_ASSIGN(plan->in_proj_, select.plan<LinearOp>(desc.in_proj, bucket, {weights.in_proj}, context));
    ASSAY_ASSIGN(plan->gates_, select.plan<LinearOp>(desc.gates, bucket, {weights.gates}, context));
    ASSAY_ASSIGN(plan->conv_gates_, select.plan<ConvGatesOp>(desc.conv_gates, bucket,
                                                             {weights.conv, weights.a_log, weights.dt_bias}, context));
    ASSAY_ASSIGN(plan->gated_delta_, select.plan<GatedDeltaOp>(desc.gated_delta, bucket, {}, context));
    ASSAY_ASSIGN(plan->gated_norm_, select.plan<RmsNormOp>(desc.gated_norm, bucket, {weights.gated_norm}, context));
    ASSAY_ASSIGN(plan->out_proj_, select.plan<LinearOp>(desc.out_proj, bucket, {weights.out_proj}, context));
    return std::unique_ptr<Plan<GdnBlockOp::Args>>(std::move(plan));
  }

  void enqueue(const GdnBlockOp::Args& args, const Launch& launch) const override {
    Workspace workspace(launch.workspace);
    const TokenCounts& tokens = args.batch.tokens;
    const Buffers buffers = carve(workspace, desc_, tokens.total);
    Launch part = launch;
    part.workspace = workspace.rest();

    run<RmsNormOp>(norm_, {tokens, args.x, {}, buffers.normed}, part);
    tap(launch, "gdn_block.norm", buffers.normed);
    run<LinearOp>(in_proj_, {tokens, buffers.normed, {}, buffers.in_proj}, part);
    tap(launch, "gdn_block.in_proj", buffers.in_proj);
    run<LinearOp>(gates_, {tokens, buffers.normed, {}, buffers.gates}, part);
    tap(launch, "gdn_block.gates", buffers.gates);

    const int64_t channels = desc_.conv_gates.channels();
    const int64_t value_width = buffers.v.cols;
    const int64_t heads = desc_.gated_delta.value_heads;
    const View z = buffers.in_proj.columns(channels, value_width);
    const View b = buffers.gates.columns(0, heads);
    const View a = buffers.gates.columns(heads, heads);
    run<ConvGatesOp>(conv_gates_,
                     {args.batch, buffers.in_proj.columns(0, channels), a, b, args.state, buffers.q, buffers.k,
                      buffers.v, buffers.g, buffers.beta},
                     part);
    tap(launch, "gdn_block.q", buffers.q);
    tap(launch, "gdn_block.k", buffers.k);
    tap(launch, "gdn_block.v", buffers.v);
    tap(launch, "gdn_block.g", buffers.g);
    tap(launch, "gdn_block.beta", buffers.beta);
    run<GatedDeltaOp>(gated_delta_,
                      {args.batch, buffers.q, buffers.k, buffers.v, buffers.g, buffers.beta, args.state, buffers.delta},
                      part);
    tap(launch, "gdn_block.delta", buffers.delta);
    run<RmsNormOp>(gated_norm_, {tokens, buffers.delta, z, buffers.delta}, part);
    tap(launch, "gdn_block.gated", buffers.delta);
    run<LinearOp>(out_proj_, {tokens, buffers.delta, args.x, args.x}, part);
  }

 private:
  GdnBlockDesc desc_;
  PlanPtr<RmsNormOp> norm_;
  PlanPtr<LinearOp> in_proj_;
  PlanPtr<LinearOp> gates_;
  PlanPtr<ConvGatesOp> conv_gates_;
  PlanPtr<GatedDeltaOp> gated_delta_;
  PlanPtr<RmsNormOp> gated_norm_;
  PlanPtr<LinearOp> out_proj_;
};

Refusal can_run(const GdnBlockDesc&, const DeviceCaps&) { return std::nullopt; }
OrderId order(const GdnBlockDesc&) { return OrderId::kNone; }
LayoutId layout(const GdnBlockDesc&) { return nullptr; }

}  // namespace

const Impl<GdnBlockOp> kGdnBlockComposed{"composed", std::nullopt,    order,         layout,
                                         can_run,    workspace_bytes, Composed::make};

}  // namespace assay::ops
