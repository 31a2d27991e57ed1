// What CUDA rows share on the host: a plan that is a function and its state, and answers several rows give alike.
#pragma once

#include <memory>
#include <string>

#include "ops/impl.h"

namespace assay::ops::cuda_row {

// enqueue() calls Enqueue(state, args, launch).
template <class Op, class State, void (*Enqueue)(const State&, const typename Op::Args&, const Launch&)>
class FunctionPlan : public Plan<typename Op::Args> {
 public:
  explicit FunctionPlan(State state) : state_(std::move(state)) {}
  void enqueue(const typename Op::Args& args, const Launch& launch) const override { Enqueue(state_, args, launch); }

 private:
  State state_;
};

template <class Op, class State, void (*Enqueue)(const State&, const typename Op::Args&, const Launch&)>
PlanPtr<Op> make_plan(State state) {
  return std::make_unique<FunctionPlan<Op, State, Enqueue>>(std::move(state));
}

// This layer's word, or null when no checks are wanted.
inline uint32_t* flag_word(const Launch& launch) {
  return launch.flags == nullptr ? nullptr : launch.flags->words + launch.layer;
}

template <class Op>
OrderId no_order(const typename Op::Desc&) {
  return OrderId::kNone;
}
template <class Op>
LayoutId no_layout(const typename Op::Desc&) {
  return nullptr;
}
template <class Op>
size_t no_workspace(const typename Op::Desc&, const Bucket&, MakeContext&) {
  return 0;
}

inline Refusal refuse_dtype(DType activation) {
  if (activation == DType::kBf16 || activation == DType::kF32) return std::nullopt;
  return "activations must be bf16 or f32";
}

}  // namespace assay::ops::cuda_row
