// Reasons several ops share for not running a Desc.
#pragma once

#include <fmt/format.h>

#include "ops/linear/linear.h"

namespace assay::ops {

constexpr std::string_view lane_name(Lane lane) {
  return lane == Lane::kBf16 ? "bf16" : lane == Lane::kW4A16 ? "w4a16" : "w4a4";
}

inline Refusal refuse_activation(DType activation) {
  if (activation == DType::kBf16 || activation == DType::kF32) return std::nullopt;
  return fmt::format("activations must be bf16 or f32, not {}", dtype_name(activation));
}

// For rows that use weights with activations that are not quantised. k: inputs of a matrix.
inline Refusal refuse_weight_only(numeric::WeightFormat format, Lane lane, DType activation, int64_t k) {
  if (lane != weight_only_lane(format)) {
    return fmt::format("lane {} is not this row's for {}", lane_name(lane), numeric::weight_format_name(format));
  }
  if (format == numeric::WeightFormat::kNvfp4 && k % numeric::kNvfp4Block != 0) {
    return fmt::format("k = {} is no multiple of 16, as nvfp4 needs", k);
  }
  return refuse_activation(activation);
}

}  // namespace assay::ops
