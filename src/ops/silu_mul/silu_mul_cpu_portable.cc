// silu_mul on any CPU: elements are split over the threads. Bound by the C library's expf, a few nanoseconds an
// element.
#include <algorithm>
#include <cmath>

#include "backend/cpu/convert.h"
#include "backend/cpu/thread_pool.h"
#include "ops/refusals.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kElementsPerPiece = 4096;

class SiluMulCpuPortable : public Plan<SiluMulOp::Args> {
 public:
  explicit SiluMulCpuPortable(const SiluMulDesc& desc) : width_(desc.width), activation_(desc.activation) {}

  void enqueue(const SiluMulOp::Args& args, const Launch& launch) const override {
    cpu::with_activation(activation_, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total * width_, kElementsPerPiece, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin / width_; t * width_ < end; ++t) {
              const int64_t first = std::max<int64_t>(begin - t * width_, 0);
              multiply<T>(args.gate_up.row<T>(t), args.y.row<T>(t), first, std::min(width_, end - t * width_));
            }
          });
    });
  }

 private:
  template <class T>
  void multiply(const T* gate_up, T* y, int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      const float gate = cpu::to_float(gate_up[i]), up = cpu::to_float(gate_up[width_ + i]);
      y[i] = cpu::from_float<T>(gate / (1.0f + std::exp(-gate)) * up);
    }
  }

  int64_t width_;
  DType activation_;
};

}  // namespace

const Impl<SiluMulOp> kSiluMulCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const SiluMulDesc&) { return order_id("silu_mul expf"); },
    .layout = nullptr,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const SiluMulDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return PlanPtr<SiluMulOp>(std::make_unique<SiluMulCpuPortable>(desc));
    },
};

}  // namespace assay::ops
