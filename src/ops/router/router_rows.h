// The rows of router, for its table, and what they share before any arithmetic.
#pragma once

#include "ops/router/router.h"

namespace assay::ops {

extern const Impl<RouterOp> kRouterReference;
extern const Impl<RouterOp> kRouterCpuPortable;
extern const Impl<RouterOp> kRouterCpuAvx2;
extern const Impl<RouterOp> kRouterCpuAvx512;
extern const Impl<RouterOp> kRouterCpuAvx512Bf16;
extern const Impl<RouterOp> kRouterCudaTile;
extern const Impl<RouterOp> kRouterCudaReference;

Refusal refuse_router(const RouterDesc& desc);

// The matrices whose rows are the logits, in order: the gate's, then (with shared_gate) the shared gate's.
// Errors: kCheckpoint.
Result<std::vector<numeric::EncodedMatrix>> router_matrices(const WeightProvider& weights, const RouterDesc& desc,
                                                            const RouterOp::Weights& ids);

}  // namespace assay::ops
