// rms_norm on an instruction set of cpu_vector.h: chunks are split over the threads; two passes over a chunk, which
// stays in L1. Squares of bf16 are exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "ops/checked_source.h"
#include "ops/cpu_vector.h"
#include "ops/host_launch.h"
#include "ops/portable_dot.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {

class RmsNormCpuVector : public Plan<RmsNormOp::Args> {
 public:
  RmsNormCpuVector(const CpuVector& set, const RmsNormDesc& desc, const WeightSource& source)
      : set_(set), desc_(desc), weight_(static_cast<size_t>(dot_padded(desc.width))) {
    portable::decode(source.matrices[0], 0, 0, desc.width, weight_.data());
    if (desc.kind == NormKind::kZeroCentred) {
      for (float& weight : weight_) weight = 1.0f + weight;
    }
  }

  void enqueue(const RmsNormOp::Args& args, const Launch& launch) const override {
    constexpr int64_t kValuesPerPiece = 20'000;
    CHECK(args.x.cols == desc_.width * desc_.groups, "rms_norm {}: {} columns", describe(desc_), args.x.cols);
    set_.with(desc_.activation, [&]<class E>(const VectorFunctions<E>& functions) {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total * desc_.groups, std::max<int64_t>(1, kValuesPerPiece / desc_.width),
                        [&](int64_t begin, int64_t end) {
                          bool finite = true;
                          for (int64_t i = begin; i < end; ++i) {
                            finite &= chunk(functions, args, i / desc_.groups, i % desc_.groups * desc_.width);
                          }
                          if (!finite && desc_.kind == NormKind::kZeroCentred) {
                            raise_flags(launch, Sentinel::kNonFiniteResidual);
                          }
                        });
    });
  }

 private:
  // Returns whether x is finite.
  template <class E>
  bool chunk(const VectorFunctions<E>& functions, const RmsNormOp::Args& args, int64_t t, int64_t first) const {
    const E* x = args.x.row<E>(args.gather == nullptr ? t : args.gather[t]) + first;
    E* y = args.y.row<E>(t) + first;
    const float squares = functions.sum_of_squares(x, desc_.width);
    // Squares of finite values may overflow: only then is a closer look needed.
    const bool finite = std::isfinite(squares) || all_finite(x, desc_.width);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(desc_.width) + desc_.eps);
    if (desc_.kind == NormKind::kZeroCentred) {
      functions.norm(x, weight_.data(), scale, y, desc_.width);
    } else {
      const auto gated = desc_.sigmoid_gate ? functions.sigmoid_norm : functions.silu_norm;
      gated(x, weight_.data(), scale, args.z.row<E>(t) + first, y, desc_.width);
    }
    return finite;
  }

  const CpuVector& set_;
  RmsNormDesc desc_;
  std::vector<float> weight_;  // as multiplied: 1 + w for the zero-centred kind
};

template <const CpuVector& kSet>
Impl<RmsNormOp> rms_norm_cpu_vector() {
  return {.name = kSet.row,
          .backend = Backend::kCpu,
          .order = [](const RmsNormDesc&) { return order_id("rms_norm squares16"); },
          .layout = nullptr,
          .can_run = [](const RmsNormDesc& desc, const DeviceCaps& caps) { return kSet.refuse(desc.activation, caps); },
          .workspace_bytes = [](const RmsNormDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
          .make = [](const RmsNormDesc& desc, const Bucket&, const RmsNormOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<RmsNormOp>> {
            ASSAY_ASSIGN(const WeightSource* source, checked_vector(context.weights, weights.weight, desc.width));
            return PlanPtr<RmsNormOp>(std::make_unique<RmsNormCpuVector>(kSet, desc, *source));
          }};
}

}  // namespace assay::ops
