// The rows of linear, for its table, and what every weight-only row of it refuses.
#pragma once

#include "ops/linear/linear.h"

namespace assay::ops {

extern const Impl<LinearOp> kLinearReference;
extern const Impl<LinearOp> kLinearCpuPortable;
extern const Impl<LinearOp> kLinearCpuAvx2;
extern const Impl<LinearOp> kLinearCpuAvx2Phased;
extern const Impl<LinearOp> kLinearCpuAvx512;
extern const Impl<LinearOp> kLinearCpuAvx512Phased;
extern const Impl<LinearOp> kLinearCpuAvx512Bf16;
extern const Impl<LinearOp> kLinearCudaReference;
extern const Impl<LinearOp> kLinearCudaGemv;
extern const Impl<LinearOp> kLinearCudaGemm;
extern const Impl<LinearOp> kLinearCudaPhased;
extern const Impl<LinearOp> kLinearCublaslt;

Refusal refuse_weight_only(const LinearDesc& desc);

}  // namespace assay::ops
