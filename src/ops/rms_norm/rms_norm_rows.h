// The rows of rms_norm, for its table.
#pragma once

#include "ops/rms_norm/rms_norm.h"

namespace assay::ops {

extern const Impl<RmsNormOp> kRmsNormReference;
extern const Impl<RmsNormOp> kRmsNormCpuPortable;
extern const Impl<RmsNormOp> kRmsNormCpuAvx2;
extern const Impl<RmsNormOp> kRmsNormCpuAvx512;
extern const Impl<RmsNormOp> kRmsNormCudaBlock;
extern const Impl<RmsNormOp> kRmsNormCudaReference;

}  // namespace assay::ops
