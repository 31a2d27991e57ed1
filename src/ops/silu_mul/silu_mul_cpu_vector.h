// silu_mul on an instruction set of cpu_vector.h: elements are split over the threads. Bound by the exponential, and in
// SSE2 by the whole of its forty operations on four elements.
#pragma once

#include <algorithm>

#include "backend/cpu/thread_pool.h"
#include "ops/cpu_vector.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {

class SiluMulCpuVector : public Plan<SiluMulOp::Args> {
 public:
  SiluMulCpuVector(const CpuVector& set, const SiluMulDesc& desc) : set_(set), desc_(desc) {}

  void enqueue(const SiluMulOp::Args& args, const Launch& launch) const override {
    constexpr int64_t kElementsPerPiece = 4096;
    const int64_t width = desc_.width;
    set_.with(desc_.activation, [&]<class E>(const VectorFunctions<E>& functions) {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total * width, kElementsPerPiece, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin / width; t * width < end; ++t) {
              const int64_t first = std::max<int64_t>(begin - t * width, 0), last = std::min(width, end - t * width);
              const E* gate = args.gate_up.row<E>(t) + first;
              functions.silu_mul(gate, gate + width, args.y.row<E>(t) + first, last - first);
            }
          });
    });
  }

 private:
  const CpuVector& set_;
  SiluMulDesc desc_;
};

template <const CpuVector& kSet>
Impl<SiluMulOp> silu_mul_cpu_vector() {
  return {
      .name = kSet.row,
      .backend = Backend::kCpu,
      .order = [](const SiluMulDesc&) { return order_id("silu_mul sigmoid_exp"); },
      .layout = nullptr,
      .can_run = [](const SiluMulDesc& desc, const DeviceCaps& caps) { return kSet.refuse(desc.activation, caps); },
      .workspace_bytes = [](const SiluMulDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
      .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
        return PlanPtr<SiluMulOp>(std::make_unique<SiluMulCpuVector>(kSet, desc));
      }};
}

}  // namespace assay::ops
