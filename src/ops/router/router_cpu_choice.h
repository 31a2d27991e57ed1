// From a token's logits to its experts and their weights, as all CPU rows of router do it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/exp.h"
#include "ops/router/router.h"

namespace assay::ops {

// Fewest tokens worth a thread of their own.
inline int64_t route_grain(const RouterDesc& desc) {
  constexpr int64_t kComparisonsPerPiece = 10'000;
  return std::max<int64_t>(1, kComparisonsPerPiece / (desc.experts * desc.top_k));
}

// A NaN is chosen last.
inline float rank(float logit) { return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit; }

// Insertion into a sorted list of the top_k: a logit goes behind those it equals, which have lower indices.
inline void choose(const RouterDesc& desc, const float* logits, int32_t* ids) {
  int32_t count = 0;
  for (int32_t e = 0; e < desc.experts; ++e) {
    const float value = rank(logits[e]);
    if (count == desc.top_k && value <= rank(logits[ids[count - 1]])) continue;
    int32_t place = count < desc.top_k ? count++ : count - 1;
    for (; place > 0 && rank(logits[ids[place - 1]]) < value; --place) ids[place] = ids[place - 1];
    ids[place] = e;
  }
}

// logits [experts], then the shared gate's.
inline void route(const RouterDesc& desc, const RouterOp::Args& args, int64_t t, const float* logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (args.logits) std::copy_n(logits, desc.experts, args.logits.row<float>(t));
  if (desc.shared_gate) *args.shared_scale.row<float>(t) = cpu::fast_sigmoid(logits[desc.experts]);
  auto* ids = args.ids.row<int32_t>(t);
  if (args.forced_ids) {
    std::copy_n(args.forced_ids.row<int32_t>(t), desc.top_k, ids);
    for (int32_t i = 0; i < desc.top_k; ++i) CHECK(ids[i] >= 0 && ids[i] < desc.experts, "expert {}", ids[i]);
  } else {
    choose(desc, logits, ids);
  }
  float largest = -kInfinity, sum = 0.0f;
  for (int32_t i = 0; i < desc.top_k; ++i) largest = std::max(largest, rank(logits[ids[i]]));
  float* weights = args.weights.row<float>(t);
  for (int32_t i = 0; i < desc.top_k; ++i) sum += weights[i] = cpu::fast_exp(logits[ids[i]] - largest);
  const bool finite_softmax = std::all_of(logits, logits + desc.experts, [](float l) { return l < kInfinity; });
  for (int32_t i = 0; i < desc.top_k; ++i) {
    weights[i] = finite_softmax ? weights[i] / sum : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace assay::ops
