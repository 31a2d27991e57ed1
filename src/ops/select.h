// Selector: which row runs an op, and the record of why (`--explain`).
//
// A row forced by `force("linear", "reference")` (forced_rows.h) is used or the load fails: it never falls back.
// Otherwise the first row of the op's list that can run and that the judge, if there is one, lets pass: the proof's
// judge lets pass the one that it chose. One entry per op and Desc is kept for explain(). A selector that collects
// makes no plans: it notes what the model asks for, so that rows can be proven before any is chosen.
//
// Owner: the engine. Thread: the loading thread only.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/forced_rows.h"
#include "ops/impl.h"
#include "ops/instances.h"
#include "ops/observer.h"
#include "ops/row_list.h"

namespace assay::ops {

struct RowDecision {
  std::string row;
  std::string reason;  // "chosen", "forced", or why it was not
};

struct Decision {
  std::string op;
  std::string desc;
  std::string chosen;  // empty: none can run
  int uses = 0;
  std::vector<RowDecision> rows;
};

class Selector {
 public:
  // Why a row may not be chosen for a Desc; nullopt when it may. Rows made of part plans are not asked about.
  using Judge = std::function<Refusal(std::string_view op, const std::string& desc, std::string_view row)>;

  // Every plan asked for is noted in `instances`, which must outlive this; the plans of rows that run on a device come
  // back null. Of an op with rows made of parts all those are made, so that the parts are noted too.
  void collect_into(Instances* instances) { instances_ = instances; }
  void set_judge(Judge judge) { judge_ = std::move(judge); }
  // Told of every call of the plans made from here on; it must outlive them.
  void set_observer(OpObserver* observer) { observer_ = observer; }

  // As ForcedRows::add().
  Result<void> force(std::string_view target, std::string_view row) { return forced_.add(target, row); }
  const ForcedRows& forced() const { return forced_; }

  // The row for a Desc. Errors: kUnsupported with every row's refusal.
  template <class Op>
  Result<const Impl<Op>*> row(const typename Op::Desc& desc, const DeviceCaps& caps) {
    const std::string desc_text = describe(desc);
    Decision& decision = entry(Op::kName, desc_text);
    ++decision.uses;
    const bool fresh = decision.rows.empty();
    const std::string_view forced = forced_.row(Op::kName, desc_text);
    const Impl<Op>* chosen = nullptr;
    for (const Impl<Op>* impl : rows<Op>()) {
      Refusal refused = refusal(*impl, desc, caps);
      if (!refused && judge_ && impl->backend) refused = judge_(Op::kName, desc_text, impl->name);
      std::string reason;
      if (!forced.empty() && forced != impl->name) {
        reason = "another row is forced";
      } else if (refused) {
        reason = *refused;
      } else if (chosen == nullptr) {
        chosen = impl;
        reason = !forced.empty() ? "chosen: forced" : judge_ ? "chosen: proven" : "chosen: first that can run";
      } else {
        reason = "later in the list";
      }
      if (fresh) decision.rows.push_back({impl->name, std::move(reason)});
    }
    if (chosen == nullptr) return none(decision);
    decision.chosen = chosen->name;
    return chosen;
  }

  // The plan of the row for a Desc.
  template <class Op>
  Result<PlanPtr<Op>> plan(const typename Op::Desc& desc, const Bucket& bucket, const typename Op::Weights& weights,
                           MakeContext& context) {
    if (instances_ != nullptr) return collect<Op>(desc, bucket, weights, context);
    ASSAY_ASSIGN(const Impl<Op>* impl, row<Op>(desc, context.caps));
    ASSAY_ASSIGN(PlanPtr<Op> plan, impl->make(desc, bucket, weights, context));
    if constexpr (HasWork<Op>) {
      if (observer_ != nullptr)
        plan = std::make_unique<ObservedPlan<Op>>(*observer_, impl->name, desc, std::move(plan));
    }
    return plan;
  }

  // Workspace of the row for a Desc; 0 when no row can run (the plan reports that).
  template <class Op>
  size_t workspace_bytes(const typename Op::Desc& desc, const Bucket& bucket, MakeContext& context) {
    auto impl = row<Op>(desc, context.caps);
    return impl.ok() ? (*impl)->workspace_bytes(desc, bucket, context) : 0;
  }

  const std::vector<Decision>& decisions() const { return decisions_; }
  // A table: op, Desc, chosen row, and each other row with its reason.
  std::string explain() const;

 private:
  template <class Op>
  Result<PlanPtr<Op>> collect(const typename Op::Desc& desc, const Bucket& bucket, const typename Op::Weights& weights,
                              MakeContext& context) {
    instances_->add<Op>({desc, bucket, weights});
    for (const Impl<Op>* impl : rows<Op>()) {
      if (impl->backend || impl->can_run(desc, context.caps)) continue;
      ASSAY_ASSIGN([[maybe_unused]] const PlanPtr<Op> parts, impl->make(desc, bucket, weights, context));
    }
    return PlanPtr<Op>();
  }
  Decision& entry(std::string_view op, std::string desc);
  static Error none(const Decision& decision);

  Instances* instances_ = nullptr;
  OpObserver* observer_ = nullptr;
  Judge judge_;
  ForcedRows forced_;
  std::vector<Decision> decisions_;
};

}  // namespace assay::ops
