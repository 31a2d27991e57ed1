// Running the parts of a block: each enqueue under a trace entry, and taps at named sites.
#pragma once

#include "base/check.h"
#include "ops/impl.h"

namespace assay::ops {

template <class Op>
void run(const PlanPtr<Op>& plan, const typename Op::Args& args, const Launch& launch) {
  OpTrace trace(Op::kName.data(), launch.layer);
  plan->enqueue(args, launch);
}

inline void tap(const Launch& launch, std::string_view site, const ConstView& value) {
  if (launch.taps != nullptr) launch.taps->record(site, launch.layer, value);
}

}  // namespace assay::ops
