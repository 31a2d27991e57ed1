// router: which experts a token goes to and with what weights; also the gate of the shared expert.
//
//   logits_e = round( dot(x, W_e) );   p = softmax(logits) over all E;   top = the k largest, ties to the lowest index
//   ids in descending order of p;   weights_i = p_i / sum_{top} p
//   shared_scale = sigmoid( round( dot(x, w_shared) ) )
//
// p grows strictly with the rounded logit, so rows order by the logit, where nothing underflows, and weights are the
// softmax over the chosen logits, which is the same quotient. A NaN logit ranks last; a NaN or +infinity among the E
// logits makes all weights of the token NaN, as the softmax over all E would.
//
// x [T, hidden] activation dtype; ids I32 [T, k]; weights F32 [T, k]; shared_scale F32 [T, 1] (only with shared_gate);
// logits F32 [T, E] optional, the rounded logits. round(): to the activation dtype; sums and softmax fp32.
// forced_ids I32 [T, k], optional: take these experts, in this order, instead of the k largest (the proof forces
// choices).
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct RouterDesc {
  int64_t hidden = 0;
  int32_t experts = 0;
  int32_t top_k = 0;
  bool shared_gate = false;
  numeric::WeightFormat format = numeric::WeightFormat::kBf16;
  DType activation = DType::kBf16;
  bool operator==(const RouterDesc&) const = default;
};
std::string describe(const RouterDesc& desc);

struct RouterOp {
  static constexpr std::string_view kName = "router";
  using Desc = RouterDesc;
  struct Weights {
    WeightId gate;         // [experts, hidden]
    WeightId shared_gate;  // [1, hidden], or kNone
  };
  struct Args {
    TokenCounts tokens;
    ConstView x;
    ConstView forced_ids;
    View ids;
    View weights;
    View shared_scale;
    View logits;
  };
  static std::span<const Impl<RouterOp>> impls();
};

}  // namespace assay::ops
