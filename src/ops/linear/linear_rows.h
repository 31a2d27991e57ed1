// The rows of linear, for its table, and what every weight-only row refuses.
#pragma once

#include "ops/linear/linear.h"

namespace assay::ops {

extern const Impl<LinearOp> kLinearReference;
extern const Impl<LinearOp> kLinearCpuPortable;

// For rows that take activations as they are, in bf16 or fp32.
Refusal refuse_weight_only(const LinearDesc& desc);

}  // namespace assay::ops
