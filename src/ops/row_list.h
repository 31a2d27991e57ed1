// The rows of an op in order of preference: those that a test put first, then Op::impls().
#pragma once

#include <vector>

#include "ops/impl.h"

namespace assay::ops {

// Rows that tests and injected faults put before all others. Empty in a serving process. Not thread-safe.
template <class Op>
std::vector<Impl<Op>>& test_rows() {
  static std::vector<Impl<Op>> rows;
  return rows;
}

template <class Op>
std::vector<const Impl<Op>*> rows() {
  std::vector<const Impl<Op>*> list;
  for (const Impl<Op>& impl : test_rows<Op>()) list.push_back(&impl);
  for (const Impl<Op>& impl : Op::impls()) list.push_back(&impl);
  return list;
}

// Why a row cannot run a Desc on a device: it is for another kind of device, or its own refusal.
template <class Op>
Refusal refusal(const Impl<Op>& impl, const typename Op::Desc& desc, const DeviceCaps& caps) {
  if (impl.backend && *impl.backend != caps.backend) return "for " + std::string(device::backend_name(*impl.backend));
  return impl.can_run(desc, caps);
}

}  // namespace assay::ops
