// gated_delta on the CPU: one item per (sequence, value head, strip of 64 value columns); columns are independent. A
// strip passes all tokens of its sequence in order. Between a prompt's first and last token the strip lives in a packed
// copy (key_dim * 256 bytes, in L1 or L2), so a prompt moves each state once in and once out; a decode step is bound by
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
  static constexpr int32_t kStrip = 64;       // value columns
  static constexpr int32_t kMaxKeyDim = 512;  // the packed copy is on the stack: 128 KiB

  GatedDeltaStrips(DeltaFunction step, const GatedDeltaDesc& desc) : step_(step), desc_(desc) {}

  void enqueue(const GatedDeltaOp::Args& args, const Launch& launch) const override {
    CHECK(args.v.dtype == desc_.activation && args.out.dtype == desc_.activation, "dtypes differ from the plan's");
    const int64_t strips = (desc_.value_dim + kStrip - 1) / kStrip;
    const int64_t per_sequence = desc_.value_heads * strips;
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.batch.sequences * per_sequence, kGrain, [&](int64_t begin, int64_t end) {
            bool bad = false;
            for (int64_t item = begin; item < end; ++item) {
              const auto within = static_cast<int32_t>(item % per_sequence);
              bad |= run_strip<T>(args, item / per_sequence, within / static_cast<int32_t>(strips),
                                  within % static_cast<int32_t>(strips) * kStrip, launch.flags != nullptr);
            }
            if (bad) raise_flags(launch, Sentinel::kNonFiniteState);
          });
    });
  }

 private:
  static constexpr int64_t kGrain = 1;  // strips worth a thread: some microseconds
  // Where a strip of the state is: row i at data + i * stride.
  struct ConstStrip {
    const float* data;
    int64_t stride;
  };
  struct Strip {
    float* data;
    int64_t stride;
  };

  // All tokens of a sequence for columns [column, column + kStrip) of one value head. True when `check` and a value of
  // the state that is left is not finite.
  template <class T>
  bool run_strip(const GatedDeltaOp::Args& args, int64_t sequence, int32_t head, int32_t column, bool check) const {
    static constexpr float kZeros[kStrip] = {};
    const BatchView& batch = args.batch;
    const int64_t first = batch.query_start[sequence];
    const int64_t last = batch.query_start[sequence + 1];
    if (first == last) return false;  // no tokens: the slots are left alone
    const int32_t columns = std::min(kStrip, desc_.value_dim - column);
    const int64_t within = (int64_t{head} * desc_.key_dim) * desc_.value_dim + column;
    const int32_t read = batch.state_read[sequence];
    const Strip written{args.state.delta + batch.state_write[sequence] * args.state.delta_stride + within,
                        desc_.value_dim};
    ConstStrip from{kZeros, 0};
    if (read >= 0) from = {args.state.delta + read * args.state.delta_stride + within, desc_.value_dim};
    alignas(64) float packed[kMaxKeyDim * kStrip];
    const int64_t key = int64_t{head / (desc_.value_heads / desc_.key_heads)} * desc_.key_dim;
    for (int64_t t = first; t < last; ++t) {
      const Strip to = t + 1 == last ? written : Strip{packed, kStrip};
      const int64_t at = int64_t{head} * desc_.value_dim + column;
      float value[kStrip];
      float out[kStrip];
      for (int32_t c = 0; c < columns; ++c) value[c] = cpu::to_float(args.v.row<T>(t)[at + c]);
      step_({args.q.row<float>(t) + key, args.k.row<float>(t) + key, value, cpu::fast_exp(args.g.row<float>(t)[head]),
             args.beta.row<float>(t)[head], desc_.key_dim, columns, from.data, from.stride, to.data, to.stride, out});
      for (int32_t c = 0; c < columns; ++c) args.out.row<T>(t)[at + c] = cpu::from_float<T>(out[c]);
      from = {to.data, to.stride};
    }
    bool bad = false;
    for (int32_t i = 0; check && i < desc_.key_dim; ++i) {
      bad |= cpu::any_non_finite(written.data + i * written.stride, columns);
    }
    return bad;
  }

  DeltaFunction step_;
  GatedDeltaDesc desc_;
};

// Set: kName, kOrder, kMissing (the refusal where has(CpuFeatures) is false), step(DeltaStep).
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
            return std::unique_ptr<Plan<GatedDeltaOp::Args>>(new GatedDeltaStrips(&Set::step, desc));
          }};
}

}  // namespace assay::ops
