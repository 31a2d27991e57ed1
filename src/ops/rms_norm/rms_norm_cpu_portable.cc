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

constexpr int64_t kValuesPerPiece = 20'000;
constexpr int64_t kBlock = 64;

template <class T>
float sum_of_squares(const T* x, int64_t width) {
  cpu::F4 sums[4] = {};
  int64_t k = 0;
  for (; k + kDotLanes <= width; k += kDotLanes) {
    cpu::F4 values[4];
    cpu::load8(x + k, values[0], values[1]);
    cpu::load8(x + k + 8, values[2], values[3]);
    for (int part = 0; part < 4; ++part) sums[part] += values[part] * values[part];
  }
  float lanes[kDotLanes];
  for (int part = 0; part < 4; ++part) cpu::store4(lanes + 4 * part, sums[part]);
  for (int64_t lane = 0; k + lane < width; ++lane) {
    const float value = cpu::to_float(x[k + lane]);
    lanes[lane] += value * value;
  }
  for (int64_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

class RmsNormCpuPortable : public Plan<RmsNormOp::Args> {
 public:
  RmsNormCpuPortable(const RmsNormDesc& desc, const WeightSource& source) : desc_(desc) {
    weight_.resize(static_cast<size_t>(dot_padded(desc.width)));
    portable::decode({&source.matrices[0], 0}, 0, desc.width, weight_.data());
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
    if (desc_.kind == NormKind::kGated) {
      gate(x, args.z.row<T>(t) + first, scale, y);
    } else {
      for (int64_t i = 0; i < desc_.width; ++i) y[i] = cpu::from_float<T>(cpu::to_float(x[i]) * scale * weight_[i]);
    }
    return finite;
  }

  template <class T>
  void gate(const T* x, const T* z, float scale, T* y) const {
    float act[kBlock], value[kBlock];  // plain fp32 loops are the ones that vectorise
    const float* weight = weight_.data();
    for (int64_t first = 0; first < desc_.width; first += kBlock) {
      const int64_t count = std::min(kBlock, desc_.width - first);
      for (int64_t i = 0; i < count; ++i) act[i] = cpu::to_float(z[first + i]);
      for (int64_t i = 0; i < count; ++i) value[i] = 1.0f + cpu::fast_exp(-act[i]);
      if (desc_.sigmoid_gate) std::fill_n(act, count, 1.0f);
      for (int64_t i = 0; i < count; ++i) act[i] = act[i] / value[i];
      for (int64_t i = 0; i < count; ++i) value[i] = cpu::to_float(x[first + i]);
      for (int64_t i = 0; i < count; ++i) value[i] = value[i] * scale * weight[first + i] * act[i];
      for (int64_t i = 0; i < count; ++i) y[first + i] = cpu::from_float<T>(value[i]);
    }
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
