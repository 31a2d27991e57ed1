// ffn_block made of the part ops' selected rows: a dense MLP, or a mixture of experts with an optional shared expert.
#include <algorithm>

#include "ops/ffn_block/ffn_block_rows.h"
#include "ops/run.h"
#include "ops/select.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

struct Buffers {
  View normed;        // [T, hidden]
  View gate_up;       // [T, 2 * width]                       with an MLP
  View hidden;        // [T, width]
  View shared;        // [T, hidden]                          shared expert
  View ids;           // I32 [T, k]                           MoE, and what follows
  View weights;       // F32 [T, k]
  View shared_scale;  // F32 [T, 1]
  View logits;        // F32 [T, experts]
};

Buffers carve(Workspace& workspace, const FfnBlockDesc& desc, int64_t tokens) {
  const DType activation = desc.norm.activation;
  Buffers buffers;
  buffers.normed = workspace.take(activation, tokens, desc.norm.width);
  if (desc.mlp) {
    buffers.gate_up = workspace.take(activation, tokens, desc.mlp->gate_up.n);
    buffers.hidden = workspace.take(activation, tokens, desc.mlp->silu_mul.width);
  }
  if (desc.router) {
    if (desc.mlp) buffers.shared = workspace.take(activation, tokens, desc.norm.width);
    buffers.ids = workspace.take(DType::kI32, tokens, desc.router->top_k);
    buffers.weights = workspace.take(DType::kF32, tokens, desc.router->top_k);
    if (desc.router->shared_gate) buffers.shared_scale = workspace.take(DType::kF32, tokens, 1);
    buffers.logits = workspace.take(DType::kF32, tokens, desc.router->experts);
  }
  return buffers;
}

size_t workspace_bytes(const FfnBlockDesc& desc, const Bucket& bucket, MakeContext& context) {
  Workspace counted;
  carve(counted, desc, bucket.tokens);
  Selector& select = context.selector;
  size_t most = select.workspace_bytes<RmsNormOp>(desc.norm, bucket, context);
  if (desc.mlp) {
    most = std::max({most, select.workspace_bytes<LinearOp>(desc.mlp->gate_up, bucket, context),
                     select.workspace_bytes<SiluMulOp>(desc.mlp->silu_mul, bucket, context),
                     select.workspace_bytes<LinearOp>(desc.mlp->down, bucket, context)});
  }
  if (desc.router) {
    most = std::max({most, select.workspace_bytes<RouterOp>(*desc.router, bucket, context),
                     select.workspace_bytes<ExpertsOp>(*desc.experts, bucket, context)});
  }
  return counted.used() + most;
}

class Composed : public Plan<FfnBlockOp::Args> {
 public:
  static Result<std::unique_ptr<Plan<FfnBlockOp::Args>>> make(const FfnBlockDesc& desc, const Bucket& bucket,
                                                              const FfnBlockOp::Weights& weights,
                                                              MakeContext& context) {
    Selector& select = context.selector;
    auto plan = std::make_unique<Composed>();
    plan->desc_ = desc;
    ASSAY_ASSIGN(plan->norm_, select.plan<RmsNormOp>(desc.norm, bucket, {weights.norm}, context));
    if (desc.mlp) {
      ASSAY_ASSIGN(plan->gate_up_, select.plan<LinearOp>(desc.mlp->gate_up, bucket, {weights.gate_up}, context));
      ASSAY_ASSIGN(plan->silu_mul_, select.plan<SiluMulOp>(desc.mlp->silu_mul, bucket, {}, context));
      ASSAY_ASSIGN(plan->down_, select.plan<LinearOp>(desc.mlp->down, bucket, {weights.down}, context));
    }
    if (desc.router) {
      ASSAY_ASSIGN(plan->router_,
                   select.plan<RouterOp>(*desc.router, bucket, {weights.router, weights.shared_gate}, context));
      ASSAY_ASSIGN(plan->experts_, select.plan<ExpertsOp>(*desc.experts, bucket, {weights.experts}, context));
    }
    return std::unique_ptr<Plan<FfnBlockOp::Args>>(std::move(plan));
  }

  void enqueue(const FfnBlockOp::Args& args, const Launch& launch) const override {
    Workspace workspace(launch.workspace);
    const Buffers buffers = carve(workspace, desc_, args.tokens.total);
    Launch part = launch;
    part.workspace = workspace.rest();

    run<RmsNormOp>(norm_, {args.tokens, args.x, {}, buffers.normed}, part);
    tap(launch, "ffn_block.norm", buffers.normed);
    if (!desc_.router) {
      mlp(args.tokens, buffers, args.x, args.x, part);
      return;
    }
    run<RouterOp>(router_,
                  {args.tokens, buffers.normed, {}, buffers.ids, buffers.weights, buffers.shared_scale, buffers.logits},
                  part);
    tap(launch, "router.ids", buffers.ids);
    tap(launch, "router.weights", buffers.weights);
    tap(launch, "router.logits", buffers.logits);
    if (desc_.mlp) {
      mlp(args.tokens, buffers, {}, buffers.shared, part);
      tap(launch, "ffn_block.shared", buffers.shared);
    }
    run<ExpertsOp>(experts_,
                   {args.tokens, buffers.normed, buffers.ids, buffers.weights, buffers.shared, buffers.shared_scale,
                    args.x, args.x},
                   part);
  }

 private:
  void mlp(const TokenCounts& tokens, const Buffers& buffers, const ConstView& residual, const View& out,
           const Launch& part) const {
    run<LinearOp>(gate_up_, {tokens, buffers.normed, {}, buffers.gate_up}, part);
    run<SiluMulOp>(silu_mul_, {tokens, buffers.gate_up, buffers.hidden}, part);
    run<LinearOp>(down_, {tokens, buffers.hidden, residual, out}, part);
  }

  FfnBlockDesc desc_;
  PlanPtr<RmsNormOp> norm_;
  PlanPtr<LinearOp> gate_up_;
  PlanPtr<SiluMulOp> silu_mul_;
  PlanPtr<LinearOp> down_;
  PlanPtr<RouterOp> router_;
  PlanPtr<ExpertsOp> experts_;
};

Refusal can_run(const FfnBlockDesc& desc, const DeviceCaps&) {
  if (!desc.mlp && !desc.router) return "neither an MLP nor experts";
  if (desc.router.has_value() != desc.experts.has_value()) return "a router and experts come together";
  return std::nullopt;
}
OrderId order(const FfnBlockDesc&) { return OrderId::kNone; }
LayoutId layout(const FfnBlockDesc&) { return nullptr; }

}  // namespace

const Impl<FfnBlockOp> kFfnBlockComposed{"composed", std::nullopt,    order,         layout,
                                         can_run,    workspace_bytes, Composed::make};

}  // namespace assay::ops
