// Instances: every use of an op by a loaded model, typed when asked for by op.
//
// Owner: whoever loads. Thread: the loading thread.
#pragma once

#include <any>
#include <map>
#include <string_view>
#include <vector>

#include "ops/impl.h"

namespace assay::ops {

template <class Op>
struct Instance {
  typename Op::Desc desc;
  Bucket bucket;
  typename Op::Weights weights;
};

class Instances {
 public:
  template <class Op>
  void add(Instance<Op> instance) {
    std::any& list = lists_[Op::kName];
    if (!list.has_value()) list = std::vector<Instance<Op>>();
    std::any_cast<std::vector<Instance<Op>>&>(list).push_back(std::move(instance));
  }

  // In the order in which the model asked for them.
  template <class Op>
  const std::vector<Instance<Op>>& of() const {
    static const std::vector<Instance<Op>> none;
    const auto found = lists_.find(Op::kName);
    return found == lists_.end() ? none : std::any_cast<const std::vector<Instance<Op>>&>(found->second);
  }

 private:
  std::map<std::string_view, std::any> lists_;
};

}  // namespace assay::ops
