#include <fmt/format.h>

#include "ops/experts/experts_rows.h"
#include "ops/refusals.h"

namespace assay::ops {

std::string describe(const ExpertsDesc& desc) {
  return fmt::format("hidden={} intermediate={} experts={} top_k={} {} {} {}", desc.hidden, desc.intermediate,
                     desc.experts, desc.top_k, numeric::weight_format_name(desc.format), lane_name(desc.lane),
                     dtype_name(desc.activation));
}

Refusal refuse_weight_only(const ExpertsDesc& desc) {
  Refusal hidden = refuse_weight_only(desc.format, desc.lane, desc.activation, desc.hidden);
  return hidden ? hidden : refuse_weight_only(desc.format, desc.lane, desc.activation, desc.intermediate);
}

Result<const WeightSource*> checked_experts(const WeightProvider& weights, WeightId id, const ExpertsDesc& desc) {
  const WeightSource& source = weights.source(id);
  if (source.matrices.size() != static_cast<size_t>(desc.experts) * 3) {
    return Error{ErrorKind::kCheckpoint,
                 "experts are missing",
                 source.name,
                 fmt::format("{} matrices", source.matrices.size()),
                 fmt::format("3 for each of {}", desc.experts),
                 ""};
  }
  for (size_t i = 0; i < source.matrices.size(); ++i) {
    const numeric::EncodedMatrix& matrix = source.matrices[i];
    const bool down = i % 3 == 2;
    const int64_t rows = down ? desc.hidden : desc.intermediate, cols = down ? desc.intermediate : desc.hidden;
    if (matrix.rows == rows && matrix.cols == cols && matrix.format == desc.format) continue;
    return Error{ErrorKind::kCheckpoint,
                 "weight does not fit the op",
                 matrix.name,
                 fmt::format("[{}, {}] {}", matrix.rows, matrix.cols, numeric::weight_format_name(matrix.format)),
                 fmt::format("[{}, {}] {}", rows, cols, numeric::weight_format_name(desc.format)),
                 ""};
  }
  return &source;
}

std::span<const Impl<ExpertsOp>> ExpertsOp::impls() {
  static const Impl<ExpertsOp> rows[] = {
#if ASSAY_WITH_CUDA
    kExpertsCudaGrouped,
    kExpertsCudaReference,
#endif
    kExpertsCpuAvx512Phased,
    kExpertsCpuAvx512,
    kExpertsCpuAvx512Bf16,
    kExpertsCpuAvx2Phased,
    kExpertsCpuAvx2,
    kExpertsCpuPortable,
    kExpertsReference,
  };
  return rows;
}

}  // namespace assay::ops
