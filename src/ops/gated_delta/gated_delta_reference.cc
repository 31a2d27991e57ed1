// The definition of gated_delta: fp64 sums, one column of the state at a time, the state rounded to fp32 once a token.
#include "backend/cpu/thread_pool.h"
#include "ops/gated_delta/gated_delta_rows.h"
#include "ops/host_launch.h"
#include "ops/reference.h"

namespace assay::ops {
namespace {

class Reference : public Plan<GatedDeltaOp::Args> {
 public:
  explicit Reference(const GatedDeltaDesc& desc) : desc_(desc) {}

  void enqueue(const GatedDeltaOp::Args& args, const Launch& launch) const override {
    const int64_t items = int64_t{args.batch.sequences} * desc_.value_heads;
    cpu::pool_of(launch.stream).parallel_for(items, 1, [&](int64_t begin, int64_t end) {
      bool finite = true;
      for (int64_t item = begin; item < end; ++item) {
        finite = run_head(args, item / desc_.value_heads, item % desc_.value_heads) && finite;
      }
      if (!finite) raise_flags(launch, Sentinel::kNonFiniteState);
    });
  }

 private:
  // All tokens of a sequence for one value head. False when a value of the state that is left is not finite.
  bool run_head(const GatedDeltaOp::Args& args, int64_t sequence, int64_t head) const {
    const BatchView& batch = args.batch;
    const int64_t matrix = int64_t{desc_.key_dim} * desc_.value_dim;
    const int64_t first = batch.query_start[sequence];
    const int64_t last = batch.query_start[sequence + 1];
    if (first == last) return true;  // no tokens: the slots are left alone
    const int32_t read = batch.state_read[sequence];
    float* state = args.state.delta + batch.state_write[sequence] * args.state.delta_stride + head * matrix;
    const float* before = read < 0 ? nullptr : args.state.delta + read * args.state.delta_stride + head * matrix;
    for (int64_t i = 0; i < matrix; ++i) state[i] = before == nullptr ? 0.0f : before[i];
    for (int64_t token = first; token < last; ++token) {
      for (int32_t column = 0; column < desc_.value_dim; ++column) run_column(args, token, head, column, state);
    }
    bool finite = true;
    for (int64_t i = 0; i < matrix; ++i) finite = finite && std::isfinite(state[i]);
    return finite;
  }

  void run_column(const GatedDeltaOp::Args& args, int64_t token, int64_t head, int32_t column, float* state) const {
    const int64_t first_key = head / (desc_.value_heads / desc_.key_heads) * desc_.key_dim;
    const int64_t value = head * desc_.value_dim + column;
    const double decay = std::exp(reference::load(args.g, token, head));
    double memory = 0;
    for (int32_t i = 0; i < desc_.key_dim; ++i) {
      memory += decay * state[i * desc_.value_dim + column] * reference::load(args.k, token, first_key + i);
    }
    const double delta = reference::load(args.beta, token, head) * (reference::load(args.v, token, value) - memory);
    double out = 0;
    for (int32_t i = 0; i < desc_.key_dim; ++i) {
      float& element = state[i * desc_.value_dim + column];
      element = static_cast<float>(decay * element + reference::load(args.k, token, first_key + i) * delta);
      out += element * reference::load(args.q, token, first_key + i);
    }
    reference::store(args.out, token, value, out);
  }

  GatedDeltaDesc desc_;
};

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaReference = {
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const GatedDeltaDesc&) { return OrderId::kNone; },
    .layout = [](const GatedDeltaDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_gated_delta,
    .workspace_bytes = [](const GatedDeltaDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const GatedDeltaDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<GatedDeltaOp::Args>>> {
      return std::unique_ptr<Plan<GatedDeltaOp::Args>>(new Reference(desc));
    }};

}  // namespace assay::ops
