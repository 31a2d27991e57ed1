// silu_mul on any CPU: elements are split over the threads, eight at a time. Bound by the exponential, about sixty
// operations on four elements.
#include <algorithm>

#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "ops/refusals.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int64_t kElementsPerPiece = 4096;

class SiluMulCpuPortable : public Plan<SiluMulOp::Args> {
 public:
  explicit SiluMulCpuPortable(const SiluMulDesc& desc) : width_(desc.width), activation_(desc.activation) {}

  void enqueue(const SiluMulOp::Args& args, const Launch& launch) const override {
    cpu::with_activation(activation_, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total * width_, kElementsPerPiece, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin / width_; t * width_ < end; ++t) {
              const int64_t first = std::max<int64_t>(begin - t * width_, 0), last = std::min(width_, end - t * width_);
              const T* gate = args.gate_up.row<T>(t) + first;
              cpu::map_with_exp(
                  last - first, args.y.row<T>(t) + first,
                  [](F4 exponential, F4 gate_lanes, F4 up) { return gate_lanes / (1.0f + exponential) * up; }, gate,
                  gate + width_);
            }
          });
    });
  }

 private:
  int64_t width_;
  DType activation_;
};

}  // namespace

const Impl<SiluMulOp> kSiluMulCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const SiluMulDesc&) { return order_id("silu_mul sigmoid_exp"); },
    .layout = nullptr,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const SiluMulDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return PlanPtr<SiluMulOp>(std::make_unique<SiluMulCpuPortable>(desc));
    },
};

}  // namespace assay::ops
