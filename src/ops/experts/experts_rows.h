// The rows of experts, for its table, and what its rows on matrices in the file layout share.
#pragma once

#include "ops/experts/experts.h"

namespace assay::ops {

extern const Impl<ExpertsOp> kExpertsReference;
extern const Impl<ExpertsOp> kExpertsCpuPortable;
extern const Impl<ExpertsOp> kExpertsCpuAvx2;
extern const Impl<ExpertsOp> kExpertsCpuAvx2Phased;
extern const Impl<ExpertsOp> kExpertsCpuAvx512;
extern const Impl<ExpertsOp> kExpertsCpuAvx512Phased;
extern const Impl<ExpertsOp> kExpertsCpuAvx512Bf16;
extern const Impl<ExpertsOp> kExpertsCudaReference;
extern const Impl<ExpertsOp> kExpertsCudaGrouped;

Refusal refuse_weight_only(const ExpertsDesc& desc);

// The source if it has gate, up and down of every expert in the Desc's sizes and format. Errors: kCheckpoint.
Result<const WeightSource*> checked_experts(const WeightProvider& weights, WeightId id, const ExpertsDesc& desc);

}  // namespace assay::ops
