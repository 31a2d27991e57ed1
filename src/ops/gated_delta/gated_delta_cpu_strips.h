// gated_delta on the CPU: one item per (sequence, value head, strip of value columns); columns are independent. A strip
// passes all tokens of its sequence in order. Between a prompt's first and last token the strip lives in a packed copy
// (key_dim * 4 bytes a column, in L1), so a prompt moves each state once in and once out; a decode step is bound by
// reading and writing key_dim * value_dim * 4 bytes a head. Nothing depends on the strip, the batch or where a sequence
// is cut. The arithmetic is a DeltaFunction of delta_kernel.h.
#pragma once

#include <algorithm>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/gated_delta/delta_kernel.h"
#include "ops/gated_delta/gated_delta_rows.h"
#include "ops/host_launch.h"

namespace assay::ops {

class GatedDeltaStrips : public Plan<GatedDeltaOp::Args> {
 public:
  static constexpr int32_t kMaxStrip = 64;    // value columns
  static constexpr int32_t kMaxKeyDim = 512;  // the packed copy is on the stack: 128 KiB

  GatedDeltaStrips(DeltaFunction run, int32_t strip, const GatedDeltaDesc& desc)
      : run_(run), strip_(strip), desc_(desc) {}

  void enqueue(const GatedDeltaOp::Args& args, const Launch& launch) const override {
    CHECK(args.v.dtype == desc_.activation && args.out.dtype == desc_.activation, "dtypes differ from the plan's");
    const int64_t strips = (desc_.value_dim + strip_ - 1) / strip_;
    const int64_t per_sequence = desc_.value_heads * strips;
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.batch.sequences * per_sequence, kGrain, [&](int64_t begin, int64_t end) {
            bool finite = true;
            for (int64_t item = begin; item < end; ++item) {
              const auto within = static_cast<int32_t>(item % per_sequence);
              finite &= run_strip<T>(args, item / per_sequence, within / static_cast<int32_t>(strips),
                                     within % static_cast<int32_t>(strips) * strip_);
            }
            if (!finite) raise_flags(launch, Sentinel::kNonFiniteState);
          });
    });
  }

 private:
  static constexpr int64_t kGrain = 1;       // strips worth a thread: some microseconds
  static constexpr int32_t kRunTokens = 16;  // converted at once; their values stay in L1 with the strip

  // All tokens of a sequence for columns [column, column + strip_) of one value head. Whether the state that is left is
  // finite.
  template <class T>
  bool run_strip(const GatedDeltaOp::Args& args, int64_t sequence, int32_t head, int32_t column) const {
    static constexpr float kZeros[kMaxStrip] = {};
    const BatchView& batch = args.batch;
    const int64_t first = batch.query_start[sequence];
    const int64_t last = batch.query_start[sequence + 1];
    if (first == last) return true;  // no tokens: the slots are left alone
    const int32_t columns = std::min(strip_, desc_.value_dim - column);
    const int64_t within = (int64_t{head} * desc_.key_dim) * desc_.value_dim + column;
    const int32_t read = batch.state_read[sequence];
    const int64_t key = int64_t{head / (desc_.value_heads / desc_.key_heads)} * desc_.key_dim;
    const int64_t at = int64_t{head} * desc_.value_dim + column;
    alignas(64) float packed[kMaxKeyDim * kMaxStrip];
    alignas(64) float value[kRunTokens * kMaxStrip];
    alignas(64) float out[kRunTokens * kMaxStrip];
    float decay[kRunTokens];
    float beta[kRunTokens];
    DeltaRun run;
    run.key_dim = desc_.key_dim;
    run.columns = columns;
    run.q_stride = args.q.stride;
    run.k_stride = args.k.stride;
    run.value = value;
    run.decay = decay;
    run.beta = beta;
    run.from = kZeros;
    run.from_stride = 0;
    if (read >= 0) {
      run.from = args.state.delta + read * args.state.delta_stride + within;
      run.from_stride = desc_.value_dim;
    }
    run.between = packed;
    run.out = out;
    bool finite = true;
    for (int64_t start = first; start < last; start += kRunTokens) {
      run.tokens = static_cast<int32_t>(std::min<int64_t>(kRunTokens, last - start));
      for (int32_t t = 0; t < run.tokens; ++t) {
        const T* from = args.v.row<T>(start + t) + at;
        for (int32_t c = 0; c < columns; ++c) value[t * columns + c] = cpu::to_float(from[c]);
        decay[t] = cpu::fast_exp(args.g.row<float>(start + t)[head]);
        beta[t] = args.beta.row<float>(start + t)[head];
      }
      run.q = args.q.row<float>(start) + key;
      run.k = args.k.row<float>(start) + key;
      run.to = packed;
      run.to_stride = columns;
      if (start + run.tokens == last) {
        run.to = args.state.delta + batch.state_write[sequence] * args.state.delta_stride + within;
        run.to_stride = desc_.value_dim;
      }
      finite = run_(run);
      for (int32_t t = 0; t < run.tokens; ++t) {
        T* to = args.out.row<T>(start + t) + at;
        for (int32_t c = 0; c < columns; ++c) to[c] = cpu::from_float<T>(out[t * columns + c]);
      }
      run.from = run.to;
      run.from_stride = run.to_stride;
    }
    return finite;
  }

  DeltaFunction run_;
  int32_t strip_;
  GatedDeltaDesc desc_;
};

// Set: kName, kOrder, kMissing (the refusal where has(CpuFeatures) is false), kStrip (value columns), run(DeltaRun).
template <class Set>
constexpr Impl<GatedDeltaOp> gated_delta_strips() {
  return {.name = Set::kName,
          .backend = Backend::kCpu,
          .order = [](const GatedDeltaDesc&) { return order_id(Set::kOrder); },
          .layout = [](const GatedDeltaDesc&) { return LayoutId{nullptr}; },
          .can_run = [](const GatedDeltaDesc& desc, const DeviceCaps& caps) -> Refusal {
            if (!Set::has(caps.cpu)) return Set::kMissing;
            constexpr int32_t kMost = GatedDeltaStrips::kMaxKeyDim;
            if (desc.key_dim > kMost) return fmt::format("key_dim above {}", kMost);
            return refuse_gated_delta(desc, caps);
          },
          .workspace_bytes = [](const GatedDeltaDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
          .make = [](const GatedDeltaDesc& desc, const Bucket&, const NoWeights&,
                     MakeContext&) -> Result<std::unique_ptr<Plan<GatedDeltaOp::Args>>> {
            return std::unique_ptr<Plan<GatedDeltaOp::Args>>(new GatedDeltaStrips(&Set::run, Set::kStrip, desc));
          }};
}

}  // namespace assay::ops
