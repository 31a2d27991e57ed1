// rms_norm on any CPU: chunks are split over the threads; two passes over a chunk, which stays in L1. The sum of
// squares is the dot product of x with itself in the order of dot_order.h; squares of bf16 are exact.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/checked_source.h"
#include "ops/portable_dot.h"
#include "ops/refusals.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int64_t kValuesPerPiece = 20'000;

template <class T>
float sum_of_squares(const T* x, int64_t width) {
  F4 sums[4] = {};
  const auto add = [&](cpu::F8 first, cpu::F8 second) {
    sums[0] += first.low * first.low;
    sums[1] += first.high * first.high;
    sums[2] += second.low * second.low;
    sums[3] += second.high * second.high;
  };
  int64_t k = 0;
  for (; k + kDotLanes <= width; k += kDotLanes) add(cpu::load8(x + k), cpu::load8(x + k + 8));
  if (k < width) add(cpu::load_part(x + k, width - k), cpu::load_part(x + k + 8, width - k - 8));
  return cpu::add_lanes({sums[0] + sums[2], sums[1] + sums[3]});
}

class RmsNormCpuPortable : public Plan<RmsNormOp::Args> {
 public:
  RmsNormCpuPortable(const RmsNormDesc& desc, const WeightSource& source) : desc_(desc) {
    weight_.resize(static_cast<size_t>(dot_padded(desc.width)));
    portable::decode(source.matrices[0], 0, 0, desc.width, weight_.data());
    if (desc.kind == NormKind::kZeroCentred) {
      for (float& weight : weight_) weight = 1.0f + weight;
    }
  }

  void enqueue(const RmsNormOp::Args& args, const Launch& launch) const override {
    CHECK(args.x.cols == desc_.width * desc_.groups, "rms_norm {}: {} columns", describe(desc_), args.x.cols);
    uint32_t* flags = desc_.kind == NormKind::kZeroCentred && launch.flags ? launch.flags->words : nullptr;
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total * desc_.groups, std::max<int64_t>(1, kValuesPerPiece / desc_.width),
                        [&](int64_t begin, int64_t end) {
                          bool finite = true;
                          for (int64_t i = begin; i < end; ++i) {
                            finite &= chunk<T>(args, i / desc_.groups, i % desc_.groups * desc_.width);
                          }
                          if (!finite && flags != nullptr) {
                            std::atomic_ref(flags[launch.layer]).fetch_or(Sentinel::kNonFiniteResidual);
                          }
                        });
    });
  }

 private:
  // Returns whether x is finite.
  template <class T>
  bool chunk(const RmsNormOp::Args& args, int64_t t, int64_t first) const {
    const T* x = args.x.row<T>(args.gather == nullptr ? t : args.gather[t]) + first;
    T* y = args.y.row<T>(t) + first;
    const float squares = sum_of_squares(x, desc_.width);
    // Squares of finite values may overflow: only then is a closer look needed.
    const bool finite = std::isfinite(squares) ||
                        std::all_of(x, x + desc_.width, [](T value) { return std::isfinite(cpu::to_float(value)); });
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(desc_.width) + desc_.eps);
    const float* weight = weight_.data();
    if (desc_.kind == NormKind::kZeroCentred) {
      cpu::map_lanes(
          desc_.width, y, [=](F4 value, F4 w) { return value * scale * w; }, x, weight);
    } else if (const T* z = args.z.row<T>(t) + first; desc_.sigmoid_gate) {
      const auto gate = [=](F4 exponential, F4, F4 value, F4 w) {
        return value * scale * w * (1.0f / (1.0f + exponential));
      };
      cpu::map_with_exp(desc_.width, y, gate, z, x, weight);
    } else {
      const auto gate = [=](F4 exponential, F4 z_lanes, F4 value, F4 w) {
        return value * scale * w * (z_lanes / (1.0f + exponential));
      };
      cpu::map_with_exp(desc_.width, y, gate, z, x, weight);
    }
    return finite;
  }

  RmsNormDesc desc_;
  std::vector<float> weight_;  // as multiplied: 1 + w for the zero-centred kind
};

}  // namespace

const Impl<RmsNormOp> kRmsNormCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const RmsNormDesc&) { return order_id("rms_norm squares16"); },
    .layout = nullptr,
    .can_run = [](const RmsNormDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const RmsNormDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const RmsNormDesc& desc, const Bucket&, const RmsNormOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<RmsNormOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_vector(context.weights, weights.weight, desc.width));
      return PlanPtr<RmsNormOp>(std::make_unique<RmsNormCpuPortable>(desc, *source));
    },
};

}  // namespace assay::ops
