#include <fmt/format.h>

#include "ops/checked_source.h"
#include "ops/refusals.h"
#include "ops/router/router_rows.h"

namespace assay::ops {

std::string describe(const RouterDesc& desc) {
  return fmt::format("hidden={} experts={} top_k={}{} {} {}", desc.hidden, desc.experts, desc.top_k,
                     desc.shared_gate ? " shared_gate" : "", numeric::weight_format_name(desc.format),
                     dtype_name(desc.activation));
}

Refusal refuse_router(const RouterDesc& desc) {
  if (desc.top_k < 1 || desc.top_k > desc.experts) return fmt::format("top_k {} of {}", desc.top_k, desc.experts);
  return refuse_weight_only(desc.format, weight_only_lane(desc.format), desc.activation, desc.hidden);
}

Result<std::vector<numeric::EncodedMatrix>> router_matrices(const WeightProvider& weights, const RouterDesc& desc,
                                                            const RouterOp::Weights& ids) {
  ASSAY_ASSIGN(const WeightSource* gate, checked_source(weights, ids.gate, desc.experts, desc.hidden, desc.format));
  std::vector<numeric::EncodedMatrix> matrices = gate->matrices;
  if (desc.shared_gate) {
    ASSAY_ASSIGN(const WeightSource* shared, checked_source(weights, ids.shared_gate, 1, desc.hidden, desc.format));
    matrices.push_back(shared->matrices[0]);
  }
  return matrices;
}

std::span<const Impl<RouterOp>> RouterOp::impls() {
  static const Impl<RouterOp> rows[] = {
#if ASSAY_WITH_CUDA
    kRouterCudaTile,
    kRouterCudaReference,
#endif
    kRouterCpuAvx512,
    kRouterCpuAvx512Bf16,
    kRouterCpuAvx2,
    kRouterCpuPortable,
    kRouterReference,
  };
  return rows;
}

}  // namespace assay::ops
