// The rotary frequencies of a Desc, made once on the host: kernels take them as a parameter.
#pragma once

#include <cmath>

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace assay::ops {

struct RopeTable {
  static constexpr int kMaxPairs = 128;
  float inv_freq[kMaxPairs] = {};

  RopeTable() = default;
  explicit RopeTable(const QkNormRopeDesc& desc) {
    for (int i = 0; i < desc.rotary_dim / 2; ++i) {
      inv_freq[i] = static_cast<float>(std::pow(desc.theta, -2.0 * i / desc.rotary_dim));
    }
  }
  static Refusal refuse(const QkNormRopeDesc& desc) {
    if (desc.rotary_dim / 2 > kMaxPairs) return "rotary_dim above 256";
    return std::nullopt;
  }
};

}  // namespace assay::ops
