// conv_gates in plain C++: one item per (token, head of q, k or v), so that one decode token spreads over threads too.
// A head's channels are neighbours, taps are stored [width][channels], and all loops run along channels. Bound by
// reading the inputs: qkv once from memory, width - 1 times more from cache. The item of a sequence's last token also
// leaves the head's part of the conv state; a slot that is written is never read in the same step.
//
// Order: taps from the oldest input to the newest; the sum of squares in the lane order of backend/cpu/lanes.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/conv_gates/conv_gates_rows.h"
#include "ops/cpu_weight.h"
#include "ops/host_launch.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int64_t kMaxHeadDim = 1024;  // fp32 rows on the stack
constexpr int64_t kGrain = 8;          // heads worth a thread: some microseconds

float softplus(float x) { return x > 20.0f ? x : std::log1p(cpu::fast_exp(x)); }

class CpuPortable : public Plan<ConvGatesOp::Args> {
 public:
  CpuPortable(const ConvGatesDesc& desc, const std::vector<float>& conv, std::vector<float> a_log,
              std::vector<float> dt_bias)
      : desc_(desc), taps_(conv.size()), rate_(std::move(a_log)), dt_bias_(std::move(dt_bias)) {
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
    cpu::with_activation(desc_.activation, [&]<class T>() {
      const int64_t items = token_total(args.batch.tokens) * heads;
      cpu::pool_of(launch.stream).parallel_for(items, kGrain, [&](int64_t begin, int64_t end) {
        bool bad = false;
        for (int64_t item = begin; item < end; ++item) {
          bad |= run_head<T>(args, item / heads, static_cast<int32_t>(item % heads), launch.flags != nullptr);
        }
        if (bad) raise_flags(launch, Sentinel::kNonFiniteState);
      });
    });
  }

 private:
  // Where a sequence's inputs come from, for channels [first, first + count).
  template <class T>
  struct Source {
    const ConvGatesOp::Args& args;
    int64_t query_start;
    const T* state;  // null: a new sequence
    int64_t kept;    // width - 1
    int64_t first;
    int64_t count;

    // values [count]: the inputs `index` tokens after the sequence's first of this step.
    void read(int64_t index, T* values) const {
      if (index >= 0) {
        std::copy_n(args.qkv.row<T>(query_start + index) + first, count, values);
      } else if (state == nullptr) {
        std::fill_n(values, count, T{});
      } else {
        for (int64_t c = 0; c < count; ++c) values[c] = state[(first + c) * kept + kept + index];
      }
    }
  };

  // Head `head` of [q heads | k heads | v heads]. True when `check` and a stored input is not finite.
  template <class T>
  bool run_head(const ConvGatesOp::Args& args, int64_t token, int32_t head, bool check) const {
    const BatchView& batch = args.batch;
    const int64_t sequence = batch.sequence_of[token];
    const int64_t read = batch.state_read[sequence];
    const int32_t value_head = head - 2 * desc_.key_heads;
    const bool is_value = value_head >= 0;
    Source<T> source{args, batch.query_start[sequence], nullptr, desc_.width - 1, 0, 0};
    source.count = is_value ? desc_.value_dim : desc_.key_dim;
    source.first = is_value ? 2 * int64_t{desc_.key_heads} * desc_.key_dim + int64_t{value_head} * desc_.value_dim
                            : int64_t{head} * desc_.key_dim;
    if (read >= 0) source.state = static_cast<const T*>(args.state.conv) + read * args.state.conv_stride;
    const int64_t index = token - source.query_start;

    float y[kMaxHeadDim];
    convolve(source, index, y);
    if (is_value) {
      T* out = args.v.row<T>(token) + int64_t{value_head} * desc_.value_dim;
      cpu::map_lanes(
          source.count, out, [](F4 value) { return value; }, y);
      gates<T>(args, token, value_head);
    } else {
      const bool is_query = head < desc_.key_heads;
      const View& out = is_query ? args.q : args.k;
      normalise<T>(y, is_query ? key_scale_ : 1.0f,
                   out.row<float>(token) + int64_t{head - (is_query ? 0 : desc_.key_heads)} * desc_.key_dim);
    }
    if (token + 1 != batch.query_start[sequence + 1]) return false;
    return leave_state(source, index + 1, batch.state_write[sequence], check);
  }

  // y = silu(sum over taps), before rounding.
  template <class T>
  void convolve(const Source<T>& source, int64_t index, float* y) const {
    T input[kMaxHeadDim];
    const int64_t count = source.count;
    std::fill_n(y, count, 0.0f);
    for (int32_t j = 0; j < desc_.width; ++j) {
      const int64_t at = index - desc_.width + 1 + j;
      const T* values = input;
      if (at >= 0) {
        values = source.args.qkv.template row<T>(source.query_start + at) + source.first;
      } else {
        source.read(at, input);
      }
      const float* tap = taps_.data() + j * desc_.channels() + source.first;
      cpu::map_lanes(
          count, y, [](F4 sum, F4 own_tap, F4 value) { return sum + own_tap * value; }, y, tap, values);
    }
    cpu::map_with_exp(
        count, y, [](F4 exponential, F4 value) { return value / (1.0f + exponential); }, y);
  }

  template <class T>
  void normalise(float* y, float factor, float* out) const {
    cpu::map_lanes(
        desc_.key_dim, y, [](F4 value) { return cpu::round_through<T>(value); }, y);
    const float scale = factor / std::sqrt(cpu::sum_of_squares(y, desc_.key_dim) + 1e-6f);
    cpu::map_lanes(
        desc_.key_dim, out, [=](F4 value) { return value * scale; }, y);
  }

  template <class T>
  void gates(const ConvGatesOp::Args& args, int64_t token, int32_t head) const {
    const auto at = static_cast<size_t>(head);
    const float a = cpu::to_float(args.a.row<T>(token)[head]);
    args.g.row<float>(token)[head] = rate_[at] * softplus(a + dt_bias_[at]);
    args.beta.row<float>(token)[head] = cpu::fast_sigmoid(cpu::to_float(args.b.row<T>(token)[head]));
  }

  template <class T>
  static bool leave_state(const Source<T>& source, int64_t tokens, int64_t slot, bool check) {
    T values[kMaxHeadDim];
    T* target = static_cast<T*>(source.args.state.conv) + slot * source.args.state.conv_stride;
    bool bad = false;
    for (int64_t i = 0; i < source.kept; ++i) {
      source.read(tokens - source.kept + i, values);
      for (int64_t c = 0; c < source.count; ++c) target[(source.first + c) * source.kept + i] = values[c];
      bad |= check && cpu::any_non_finite(values, source.count);
    }
    return bad;
  }

  ConvGatesDesc desc_;
  std::vector<float> taps_;  // [width, channels]
  std::vector<float> rate_;  // -exp(A_log)
  std::vector<float> dt_bias_;
  float key_scale_ = 1.0f;
};

Refusal can_run(const ConvGatesDesc& desc, const DeviceCaps& caps) {
  if (std::max(desc.key_dim, desc.value_dim) > kMaxHeadDim) return fmt::format("head dims above {}", kMaxHeadDim);
  return refuse_conv_gates(desc, caps);
}

Result<std::unique_ptr<Plan<ConvGatesOp::Args>>> make(const ConvGatesDesc& desc, const Bucket&,
                                                      const ConvGatesOp::Weights& weights, MakeContext& context) {
  ASSAY_ASSIGN(auto conv, load_cpu_vector(context.weights, weights.conv, desc.channels(), desc.width));
  ASSAY_ASSIGN(auto a_log, load_cpu_vector(context.weights, weights.a_log, 1, desc.value_heads));
  ASSAY_ASSIGN(auto dt_bias, load_cpu_vector(context.weights, weights.dt_bias, 1, desc.value_heads));
  return std::unique_ptr<Plan<ConvGatesOp::Args>>(new CpuPortable(desc, conv, std::move(a_log), std::move(dt_bias)));
}

}  // namespace

constinit const Impl<ConvGatesOp> kConvGatesCpuPortable = {
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const ConvGatesDesc&) { return order_id("conv_gates: oldest tap first, eight lanes"); },
    .layout = [](const ConvGatesDesc&) { return LayoutId{nullptr}; },
    .can_run = can_run,
    .workspace_bytes = [](const ConvGatesDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = make};

}  // namespace assay::ops
