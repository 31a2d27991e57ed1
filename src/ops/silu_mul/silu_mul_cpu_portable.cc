// silu_mul on any CPU: elements are split over the threads. Bound by the exponential, about twenty operations an
// element.
#include <algorithm>

#include "backend/cpu/convert.h"
#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "ops/refusals.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kElementsPerPiece = 4096;
constexpr int64_t kBlock = 64;

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
    float gate[kBlock], up[kBlock];  // plain fp32 loops are the ones that vectorise
    for (int64_t i = first; i < last; i += kBlock) {
      const int64_t count = std::min(kBlock, last - i);
      for (int64_t j = 0; j < count; ++j) gate[j] = cpu::to_float(gate_up[i + j]);
      for (int64_t j = 0; j < count; ++j) up[j] = cpu::to_float(gate_up[width_ + i + j]);
      for (int64_t j = 0; j < count; ++j) gate[j] = cpu::fast_silu(gate[j]) * up[j];
      for (int64_t j = 0; j < count; ++j) y[i + j] = cpu::from_float<T>(gate[j]);
    }
  }

  int64_t width_;
  DType activation_;
};

}  // namespace

const Impl<SiluMulOp> kSiluMulCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const SiluMulDesc&) { return order_id("silu_mul fast_exp"); },
    .layout = nullptr,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const SiluMulDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return PlanPtr<SiluMulOp>(std::make_unique<SiluMulCpuPortable>(desc));
    },
};

}  // namespace assay::ops
