// conv_gates on an instruction set of cpu_vector.h: one item per (token, head of q, k or v), so that one decode token
// spreads over threads too. A head's channels are neighbours, taps are stored [width][channels], and all loops run
// along channels. Bound by the exponentials; qkv is read once from memory, width - 1 times more from cache. The item of
// a sequence's last token also leaves the head's part of the conv state, which is the newer part of its window; a slot
// that is written is never read in the same step.
//
// Order: taps from the oldest input to the newest; the sum of squares in sixteen lanes.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "ops/conv_gates/conv_gates_rows.h"
#include "ops/cpu_vector.h"
#include "ops/cpu_weight.h"
#include "ops/host_launch.h"

namespace assay::ops {

class ConvGatesCpuVector : public Plan<ConvGatesOp::Args> {
 public:
  // A window of inputs is on the stack.
  static constexpr int64_t kMaxHeadDim = 1024;
  static constexpr int32_t kMaxWidth = 16;

  ConvGatesCpuVector(const CpuVector& set, const ConvGatesDesc& desc, const std::vector<float>& conv,
                     std::vector<float> a_log, std::vector<float> dt_bias)
      : set_(set), desc_(desc), taps_(conv.size()), rate_(std::move(a_log)), dt_bias_(std::move(dt_bias)) {
    const auto channels = static_cast<size_t>(desc.channels());
    const auto width = static_cast<size_t>(desc.width);
    for (size_t c = 0; c < channels; ++c) {
      for (size_t j = 0; j < width; ++j) taps_[j * channels + c] = conv[c * width + j];
    }
    for (float& rate : rate_) rate = static_cast<float>(-std::exp(static_cast<double>(rate)));
    key_scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(desc.key_dim)));
  }

  void enqueue(const ConvGatesOp::Args& args, const Launch& launch) const override {
    CHECK(args.qkv.dtype == desc_.activation && args.state.conv_dtype == desc_.activation &&
              args.v.dtype == desc_.activation && args.a.dtype == desc_.activation && args.b.dtype == desc_.activation,
          "dtypes differ from the plan's");
    const int64_t heads = 2 * int64_t{desc_.key_heads} + desc_.value_heads;
    const int64_t items = token_total(args.batch.tokens) * heads;
    set_.with(desc_.activation, [&]<class E>(const VectorFunctions<E>& functions) {
      cpu::pool_of(launch.stream).parallel_for(items, kGrain, [&](int64_t begin, int64_t end) {
        bool finite = true;
        for (int64_t item = begin; item < end; ++item) {
          finite &= run_head(functions, args, item / heads, static_cast<int32_t>(item % heads));
        }
        if (!finite) raise_flags(launch, Sentinel::kNonFiniteState);
      });
    });
  }

 private:
  static constexpr int64_t kGrain = 8;  // heads worth a thread: some microseconds

  static float softplus(float x) { return x > 20.0f ? x : std::log1p(cpu::fast_exp(x)); }

  // The last `width` inputs up to a token, oldest first, of channels [first, first + count).
  template <class E>
  struct Window {
    int64_t first;
    int64_t count;
    const E* inputs[kMaxWidth];
    E kept[kMaxWidth][kMaxHeadDim];  // those from before the step
  };

  // Head `head` of [q heads | k heads | v heads]. False when a stored input is not finite.
  template <class E>
  bool run_head(const VectorFunctions<E>& functions, const ConvGatesOp::Args& args, int64_t token, int32_t head) const {
    const int64_t sequence = args.batch.sequence_of[token];
    const int32_t value_head = head - 2 * desc_.key_heads;
    Window<E> window;
    window.count = value_head >= 0 ? desc_.value_dim : desc_.key_dim;
    window.first = value_head >= 0
                       ? 2 * int64_t{desc_.key_heads} * desc_.key_dim + int64_t{value_head} * desc_.value_dim
                       : int64_t{head} * desc_.key_dim;
    open(args, token, sequence, window);
    const auto convolve = [&](E* y) {
      functions.convolve(window.inputs, desc_.width, taps_.data() + window.first, desc_.channels(), y, window.count);
    };
    if (value_head >= 0) {
      convolve(args.v.row<E>(token) + int64_t{value_head} * desc_.value_dim);
      gates<E>(args, token, value_head);
    } else {
      const bool is_query = head < desc_.key_heads;
      const View& out = is_query ? args.q : args.k;
      E y[kMaxHeadDim];
      convolve(y);
      const float norm = std::sqrt(functions.sum_of_squares(y, desc_.key_dim) + 1e-6f);
      functions.scale(y, (is_query ? key_scale_ : 1.0f) / norm,
                      out.row<float>(token) + int64_t{head - (is_query ? 0 : desc_.key_heads)} * desc_.key_dim,
                      desc_.key_dim);
    }
    return token + 1 != args.batch.query_start[sequence + 1] || leave_state(args, sequence, window);
  }

  template <class E>
  void open(const ConvGatesOp::Args& args, int64_t token, int64_t sequence, Window<E>& window) const {
    const int64_t start = args.batch.query_start[sequence], kept = desc_.width - 1;
    const int64_t before = std::max<int64_t>(0, start + kept - token);  // inputs of the window from before the step
    const int64_t slot = args.batch.state_read[sequence];
    for (int64_t j = 0; j < before; ++j) window.inputs[j] = window.kept[j];
    for (int64_t j = before; j < desc_.width; ++j) window.inputs[j] = args.qkv.row<E>(token - kept + j) + window.first;
    if (slot < 0) {
      for (int64_t j = 0; j < before; ++j) std::fill_n(window.kept[j], window.count, E{});
      return;
    }
    const E* state =
        static_cast<const E*>(args.state.conv) + slot * args.state.conv_stride + window.first * kept + kept - before;
    unrolled(before, [&](auto inputs) {
      for (int64_t c = 0; c < window.count; ++c) {
        for (int64_t j = 0; j < inputs; ++j) window.kept[j][c] = state[c * kept + j];
      }
    });
  }

  // True when all of it is finite.
  template <class E>
  bool leave_state(const ConvGatesOp::Args& args, int64_t sequence, const Window<E>& window) const {
    const int64_t kept = desc_.width - 1;
    E* state = static_cast<E*>(args.state.conv) + args.batch.state_write[sequence] * args.state.conv_stride +
               window.first * kept;
    unrolled(kept, [&](auto inputs) {
      for (int64_t c = 0; c < window.count; ++c) {
        for (int64_t i = 0; i < inputs; ++i) state[c * inputs + i] = window.inputs[i + 1][c];
      }
    });
    return all_finite(state, window.count * kept);
  }

  // body(inputs), as a constant where it is 3, as in every model known: the state's channels lie apart, and loops over
  // three at a time that know it are twice as fast.
  template <class Body>
  static void unrolled(int64_t inputs, const Body& body) {
    inputs == 3 ? body(std::integral_constant<int64_t, 3>{}) : body(inputs);
  }

  template <class E>
  void gates(const ConvGatesOp::Args& args, int64_t token, int32_t head) const {
    const auto at = static_cast<size_t>(head);
    const float a = to_float(args.a.row<E>(token)[head]);
    args.g.row<float>(token)[head] = rate_[at] * softplus(a + dt_bias_[at]);
    args.beta.row<float>(token)[head] = cpu::fast_sigmoid(to_float(args.b.row<E>(token)[head]));
  }

  const CpuVector& set_;
  ConvGatesDesc desc_;
  std::vector<float> taps_;  // [width, channels]
  std::vector<float> rate_;  // -exp(A_log)
  std::vector<float> dt_bias_;
  float key_scale_ = 1.0f;
};

template <const CpuVector& kSet>
Impl<ConvGatesOp> conv_gates_cpu_vector() {
  return {.name = kSet.row,
          .backend = Backend::kCpu,
          .order = [](const ConvGatesDesc&) { return order_id("conv_gates: oldest tap first, sixteen lanes"); },
          .layout = [](const ConvGatesDesc&) { return LayoutId{nullptr}; },
          .can_run = [](const ConvGatesDesc& desc, const DeviceCaps& caps) -> Refusal {
            constexpr int64_t kMostDim = ConvGatesCpuVector::kMaxHeadDim, kMostWidth = ConvGatesCpuVector::kMaxWidth;
            if (std::max(desc.key_dim, desc.value_dim) > kMostDim) return fmt::format("head dims above {}", kMostDim);
            if (desc.width > kMostWidth) return fmt::format("width above {}", kMostWidth);
            if (Refusal refusal = kSet.refuse(desc.activation, caps)) return refusal;
            return refuse_conv_gates(desc, caps);
          },
          .workspace_bytes = [](const ConvGatesDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
          .make = [](const ConvGatesDesc& desc, const Bucket&, const ConvGatesOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<ConvGatesOp>> {
            ASSAY_ASSIGN(auto conv, load_cpu_vector(context.weights, weights.conv, desc.channels(), desc.width));
            ASSAY_ASSIGN(auto a_log, load_cpu_vector(context.weights, weights.a_log, 1, desc.value_heads));
            ASSAY_ASSIGN(auto dt_bias, load_cpu_vector(context.weights, weights.dt_bias, 1, desc.value_heads));
            return PlanPtr<ConvGatesOp>(
                std::make_unique<ConvGatesCpuVector>(kSet, desc, conv, std::move(a_log), std::move(dt_bias)));
          }};
}

}  // namespace assay::ops
