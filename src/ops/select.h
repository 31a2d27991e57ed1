// Selector: which row runs an op, and the record of why (`--explain`).
//
// A row forced by `force("linear", "reference")` is used or the load fails: it never falls back. Otherwise the first
// row of the op's list that can run. One entry per op and Desc is kept for explain().
//
// Owner: the engine. Thread: the loading thread only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/impl.h"

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
  // Errors: kInvalidArgument when op or row is unknown, or the op is forced to another row already. op "*": every op
  // that has such a row.
  Result<void> force(std::string_view op, std::string_view row);

  // The row for a Desc. Errors: kUnsupported with every row's refusal.
  template <class Op>
  Result<const Impl<Op>*> row(const typename Op::Desc& desc, const DeviceCaps& caps) {
    Decision& decision = entry(Op::kName, describe(desc));
    ++decision.uses;
    const bool fresh = decision.rows.empty();
    const std::string_view forced = forced_row(Op::kName);
    const Impl<Op>* chosen = nullptr;
    for (const Impl<Op>& impl : Op::impls()) {
      Refusal refusal = refuse(impl, desc, caps);
      std::string reason;
      if (!forced.empty() && forced != impl.name) {
        reason = "another row is forced";
      } else if (refusal) {
        reason = *refusal;
      } else if (chosen == nullptr) {
        chosen = &impl;
        reason = forced.empty() ? "chosen: first that can run" : "chosen: forced";
      } else {
        reason = "later in the list";
      }
      if (fresh) decision.rows.push_back({impl.name, std::move(reason)});
    }
    if (chosen == nullptr) return none(decision);
    decision.chosen = chosen->name;
    return chosen;
  }

  // The plan of the row for a Desc.
  template <class Op>
  Result<PlanPtr<Op>> plan(const typename Op::Desc& desc, const Bucket& bucket, const typename Op::Weights& weights,
                           MakeContext& context) {
    ASSAY_ASSIGN(const Impl<Op>* impl, row<Op>(desc, context.caps));
    return impl->make(desc, bucket, weights, context);
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
  static Refusal refuse(const Impl<Op>& impl, const typename Op::Desc& desc, const DeviceCaps& caps) {
    if (impl.backend && *impl.backend != caps.backend) return "for " + std::string(device::backend_name(*impl.backend));
    return impl.can_run(desc, caps);
  }
  Decision& entry(std::string_view op, std::string desc);
  std::string_view forced_row(std::string_view op) const;
  static Error none(const Decision& decision);

  std::map<std::string, std::string, std::less<>> forced_;
  std::vector<Decision> decisions_;
};

}  // namespace assay::ops
