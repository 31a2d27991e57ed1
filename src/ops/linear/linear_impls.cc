#include <fmt/format.h>

#include "ops/linear/linear_rows.h"

namespace assay::ops {
namespace {

std::string_view lane_name(Lane lane) { return lane == Lane::kBf16 ? "bf16" : lane == Lane::kW4A16 ? "w4a16" : "w4a4"; }

}  // namespace

std::string describe(const LinearDesc& desc) {
  return fmt::format("n={} k={} {} {} {}->{}", desc.n, desc.k, numeric::weight_format_name(desc.format),
                     lane_name(desc.lane), dtype_name(desc.activation), dtype_name(desc.output));
}

Refusal refuse_weight_only(const LinearDesc& desc) {
  if (desc.lane != weight_only_lane(desc.format))
    return "lane " + std::string(lane_name(desc.lane)) + " is not this row's";
  if (desc.activation != DType::kBf16 && desc.activation != DType::kF32) return "activations must be bf16 or f32";
  if (desc.output != DType::kF32 && desc.output != desc.activation) return "output must be f32 or the activation dtype";
  if (desc.format == numeric::WeightFormat::kNvfp4 && desc.k % numeric::kNvfp4Block != 0) {
    return "k must be a multiple of 16 for nvfp4";
  }
  return std::nullopt;
}

std::span<const Impl<LinearOp>> LinearOp::impls() {
  static const Impl<LinearOp> rows[] = {kLinearCpuPortable, kLinearReference};
  return rows;
}

}  // namespace assay::ops
