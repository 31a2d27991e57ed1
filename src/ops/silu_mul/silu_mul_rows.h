// The rows of silu_mul, for its table.
#pragma once

#include "ops/silu_mul/silu_mul.h"

namespace assay::ops {

extern const Impl<SiluMulOp> kSiluMulReference;
extern const Impl<SiluMulOp> kSiluMulCpuPortable;
extern const Impl<SiluMulOp> kSiluMulCpuAvx2;
extern const Impl<SiluMulOp> kSiluMulCpuAvx512;
extern const Impl<SiluMulOp> kSiluMulCudaElementwise;
extern const Impl<SiluMulOp> kSiluMulCudaReference;

}  // namespace assay::ops
