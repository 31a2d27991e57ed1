// OpObserver: sees each op that a plan of a model enqueues, for timing. Ops made of parts show as their parts.
#pragma once

#include <optional>
#include <utility>

#include "ops/impl.h"
#include "ops/work.h"

namespace assay::ops {

// One call; valid while the observer is told of it.
class OpCall {
 public:
  virtual ~OpCall() = default;
  virtual std::string_view op() const = 0;
  virtual std::string_view row() const = 0;
  virtual std::string desc() const = 0;
  virtual Work work(const ReadInts& read) const = 0;
};

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const OpCall& call) = 0;
  virtual void after(const OpCall& call) = 0;
  // Under which key a step may be captured in a graph, what before() and after() enqueue included; nullopt: they wait
  // or allocate, so it must run directly.
  virtual std::optional<uint64_t> capture_key() const = 0;
};

// A plan that tells an observer of its calls.
template <class Op>
class ObservedPlan : public Plan<typename Op::Args> {
 public:
  ObservedPlan(OpObserver& observer, std::string_view row, typename Op::Desc desc, PlanPtr<Op> plan)
      : observer_(observer), row_(row), desc_(std::move(desc)), plan_(std::move(plan)) {}

  void enqueue(const typename Op::Args& args, const Launch& launch) const override {
    const Call call(*this, args);
    observer_.before(call);
    plan_->enqueue(args, launch);
    observer_.after(call);
  }

 private:
  class Call : public OpCall {
   public:
    Call(const ObservedPlan& plan, const typename Op::Args& args) : plan_(plan), args_(args) {}
    std::string_view op() const override { return Op::kName; }
    std::string_view row() const override { return plan_.row_; }
    std::string desc() const override { return describe(plan_.desc_); }
    Work work(const ReadInts& read) const override { return ops::work(plan_.desc_, args_, read); }

   private:
    const ObservedPlan& plan_;
    const typename Op::Args& args_;
  };

  OpObserver& observer_;
  std::string_view row_;
  typename Op::Desc desc_;
  PlanPtr<Op> plan_;
};

}  // namespace assay::ops
