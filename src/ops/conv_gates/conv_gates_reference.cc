// The definition of conv_gates: fp64, one channel at a time.
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "ops/conv_gates/conv_gates_rows.h"
#include "ops/host_launch.h"
#include "ops/reference.h"
#include "ops/reference_weight.h"

namespace assay::ops {
namespace {

class Reference : public Plan<ConvGatesOp::Args> {
 public:
  Reference(const ConvGatesDesc& desc, std::vector<double> conv, std::vector<double> a_log, std::vector<double> dt_bias)
      : desc_(desc), conv_(std::move(conv)), a_log_(std::move(a_log)), dt_bias_(std::move(dt_bias)) {}

  void enqueue(const ConvGatesOp::Args& args, const Launch& launch) const override {
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    pool.parallel_for(token_total(args.batch.tokens), 1, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) run_token(args, token);
    });
    pool.parallel_for(args.batch.sequences, 1, [&](int64_t begin, int64_t end) {
      bool finite = true;
      for (int64_t sequence = begin; sequence < end; ++sequence) finite = leave_state(args, sequence) && finite;
      if (!finite) raise_flags(launch, Sentinel::kNonFiniteState);
    });
  }

 private:
  // The input of a channel `index` tokens after the sequence's first of this step; negative: from its conv state.
  double input(const ConvGatesOp::Args& args, int64_t sequence, int64_t index, int64_t channel) const {
    if (index >= 0) return reference::load(args.qkv, args.batch.query_start[sequence] + index, channel);
    const int64_t slot = args.batch.state_read[sequence];
    if (slot < 0) return 0;
    const int64_t kept = desc_.width - 1;
    return reference::load(args.state.conv_dtype, args.state.conv,
                           slot * args.state.conv_stride + channel * kept + kept + index);
  }

  double convolved(const ConvGatesOp::Args& args, int64_t token, int64_t channel) const {
    const int64_t sequence = args.batch.sequence_of[token];
    const int64_t index = token - args.batch.query_start[sequence];
    double sum = 0;
    for (int32_t j = 0; j < desc_.width; ++j) {
      sum += conv_[static_cast<size_t>(channel * desc_.width + j)] *
             input(args, sequence, index - desc_.width + 1 + j, channel);
    }
    return reference::round_to(desc_.activation, reference::silu(sum));
  }

  // out [key_heads * key_dim] from the channels at `first`: l2-normed heads times `factor`.
  void run_keys(const ConvGatesOp::Args& args, int64_t token, int64_t first, double factor, const View& out) const {
    for (int64_t begin = 0; begin < int64_t{desc_.key_heads} * desc_.key_dim; begin += desc_.key_dim) {
      double squares = 0;
      for (int64_t i = begin; i < begin + desc_.key_dim; ++i) {
        const double y = convolved(args, token, first + i);
        squares += y * y;
      }
      const double scale = factor / std::sqrt(squares + 1e-6);
      for (int64_t i = begin; i < begin + desc_.key_dim; ++i) {
        reference::store(out, token, i, convolved(args, token, first + i) * scale);
      }
    }
  }

  void run_token(const ConvGatesOp::Args& args, int64_t token) const {
    const int64_t keys = int64_t{desc_.key_heads} * desc_.key_dim;
    run_keys(args, token, 0, 1.0 / std::sqrt(static_cast<double>(desc_.key_dim)), args.q);
    run_keys(args, token, keys, 1.0, args.k);
    for (int64_t i = 0; i < int64_t{desc_.value_heads} * desc_.value_dim; ++i) {
      reference::store(args.v, token, i, convolved(args, token, 2 * keys + i));
    }
    for (int64_t head = 0; head < desc_.value_heads; ++head) {
      const double x = reference::load(args.a, token, head) + dt_bias_[static_cast<size_t>(head)];
      const double softplus = x > 20 ? x : std::log1p(std::exp(x));
      reference::store(args.g, token, head, -std::exp(a_log_[static_cast<size_t>(head)]) * softplus);
      reference::store(args.beta, token, head, reference::sigmoid(reference::load(args.b, token, head)));
    }
  }

  // False when a stored input is not finite.
  bool leave_state(const ConvGatesOp::Args& args, int64_t sequence) const {
    const int64_t tokens = args.batch.query_start[sequence + 1] - args.batch.query_start[sequence];
    if (tokens == 0) return true;  // no tokens: the slots are left alone
    const int64_t kept = desc_.width - 1;
    const int64_t target = args.batch.state_write[sequence] * args.state.conv_stride;
    bool finite = true;
    for (int64_t channel = 0; channel < desc_.channels(); ++channel) {
      for (int64_t i = 0; i < kept; ++i) {
        const double value = input(args, sequence, tokens - kept + i, channel);
        reference::store(args.state.conv_dtype, args.state.conv, target + channel * kept + i, value);
        finite = finite && std::isfinite(value);
      }
    }
    return finite;
  }

  ConvGatesDesc desc_;
  std::vector<double> conv_;  // [channels, width]
  std::vector<double> a_log_;
  std::vector<double> dt_bias_;
};

Result<std::unique_ptr<Plan<ConvGatesOp::Args>>> make(const ConvGatesDesc& desc, const Bucket&,
                                                      const ConvGatesOp::Weights& weights, MakeContext& context) {
  WeightProvider& files = context.weights;
  ASSAY_ASSIGN(auto conv, reference::load_weight(files.source(weights.conv), desc.channels(), desc.width));
  ASSAY_ASSIGN(auto a_log, reference::load_weight(files.source(weights.a_log), 1, desc.value_heads));
  ASSAY_ASSIGN(auto dt_bias, reference::load_weight(files.source(weights.dt_bias), 1, desc.value_heads));
  return std::unique_ptr<Plan<ConvGatesOp::Args>>(
      new Reference(desc, std::move(conv), std::move(a_log), std::move(dt_bias)));
}

}  // namespace

constinit const Impl<ConvGatesOp> kConvGatesReference = {
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const ConvGatesDesc&) { return OrderId::kNone; },
    .layout = [](const ConvGatesDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_conv_gates,
    .workspace_bytes = [](const ConvGatesDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = make};

}  // namespace assay::ops
