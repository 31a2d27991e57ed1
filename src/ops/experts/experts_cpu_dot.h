// experts on an instruction set of cpu_dot.h. Tokens are grouped by expert; a weight row is read once for up to 128 of
// them. Two parallel loops: over the I rows of gate and up, and over the `hidden` rows of down. A thread goes through
// all chosen experts for its rows, in ascending order: equal work for every thread, one thread for one output element.
// Decode is bound by reading the chosen experts' weights, prefill by the multiply-adds.
#pragma once

#include <algorithm>

#include "backend/cpu/convert.h"
#include "backend/cpu/exp.h"
#include "ops/cpu_dot.h"
#include "ops/experts/expert_groups.h"
#include "ops/experts/experts_rows.h"
#include "ops/workspace.h"

namespace assay::ops {

class ExpertsCpuDot : public Plan<ExpertsOp::Args> {
 public:
  ExpertsCpuDot(const CpuDot& kernel, const ExpertsDesc& desc, const WeightSource& source)
      : kernel_(kernel), form_(kernel.form(desc.format, desc.activation)), desc_(desc), source_(source) {}

  static size_t workspace_bytes(DotForm form, const ExpertsDesc& desc, int64_t tokens) {
    Workspace counted;
    carve(form, desc, tokens, counted);
    return counted.used();
  }

  void enqueue(const ExpertsOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden && args.y.cols == desc_.hidden && args.ids.cols == desc_.top_k &&
              args.x.dtype == desc_.activation,
          "experts {}", describe(desc_));
    Workspace workspace(launch.workspace);
    const Scratch scratch = carve(form_, desc_, tokens, workspace);
    scratch.groups.fill(args.ids, tokens);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    kernel_.prepare(scratch.x_places, args.x, scratch.x, pool);
    const int64_t uses = tokens * desc_.top_k;
    const int64_t chosen = std::min<int64_t>(uses, desc_.experts);  // experts, at most
    const auto grain = [&](int64_t columns) {
      return block_grain(uses * columns, chosen * dot_bytes(desc_.format, columns));
    };
    pool.parallel_for(blocks(desc_.intermediate), grain(desc_.hidden * 2), [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(desc_.intermediate, end * kDotRowBlock);
      cpu::with_activation(desc_.activation, [&]<class T>() { hidden<T>(scratch, begin * kDotRowBlock, last); });
    });
    if (launch.taps != nullptr) show_hidden(scratch, launch);
    kernel_.prepare(scratch.h_places, scratch.hidden, scratch.h, pool);
    pool.parallel_for(blocks(desc_.hidden), grain(desc_.intermediate), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kDotRowBlock, last = std::min(desc_.hidden, end * kDotRowBlock);
      down(args, scratch, first, last);
      cpu::with_activation(desc_.activation, [&]<class T>() { finish<T>(args, scratch, first, last); });
    });
  }

 private:
  struct Scratch {
    ExpertGroups groups;
    DotPlaces x_places;
    DotPlaces h_places;
    std::byte* x;  // [T] in the kernel's form
    View hidden;   // [T * k, I], h in the activation dtype
    std::byte* h;  // [T * k] in the kernel's form
    float* sums;   // [T, hidden]
    View tapped;   // F32 [T * k, I]
  };

  static Scratch carve(DotForm form, const ExpertsDesc& desc, int64_t tokens, Workspace& workspace) {
    const auto take = [&](const DotPlaces& places) {
      return static_cast<std::byte*>(workspace.take(DType::kU8, 1, places.bytes()).data);
    };
    const int64_t uses = tokens * desc.top_k;
    Scratch scratch;
    scratch.groups = ExpertGroups(desc.experts, desc.top_k, tokens, workspace);
    scratch.x_places = {form, tokens, desc.hidden};
    scratch.h_places = {form, uses, desc.intermediate};
    scratch.x = take(scratch.x_places);
    scratch.hidden = workspace.take(desc.activation, uses, desc.intermediate);
    scratch.h = take(scratch.h_places);
    scratch.sums = static_cast<float*>(workspace.take(DType::kF32, tokens, desc.hidden).data);
    scratch.tapped = workspace.take(DType::kF32, uses, desc.intermediate);
    return scratch;
  }

  static int64_t blocks(int64_t rows) { return (rows + kDotRowBlock - 1) / kDotRowBlock; }

  struct Matrices {
    size_t first, last;
  };
  static constexpr Matrices kGateUp{0, 2}, kDown{2, 3};  // of an expert's three

  // Asks for rows from `row` on of the first chosen expert from `from` on. A thread meets an expert's rows in stretches
  // of some KiB that lie far apart, so that nothing else sees the next one coming.
  void prefetch_expert(const Scratch& scratch, size_t from, Matrices matrices, int64_t row) const {
    const auto expert = static_cast<size_t>(scratch.groups.chosen_from(static_cast<int32_t>(from)));
    if (expert == static_cast<size_t>(desc_.experts)) return;
    for (size_t i = matrices.first; i < matrices.last; ++i) {
      const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + i];
      prefetch_start(dot_rows(matrix, row, std::min(kDotRowBlock, matrix.rows - row)));
    }
  }

  // Rows [begin, end) of h for every use.
  template <class T>
  void hidden(const Scratch& scratch, int64_t begin, int64_t end) const {
    float gates[kDotTokens * kDotRowBlock], ups[kDotTokens * kDotRowBlock];
    prefetch_expert(scratch, 0, kGateUp, begin);
    scratch.groups.for_each_tile(kDotTokens, [&](size_t expert, const int32_t* uses, int64_t count) {
      prefetch_expert(scratch, expert + 1, kGateUp, begin);
      const numeric::EncodedMatrix& gate = source_.matrices[3 * expert];
      const numeric::EncodedMatrix& up = source_.matrices[3 * expert + 1];
      const float gate_scale = dot_scale(gate), up_scale = dot_scale(up);
      const std::byte* tokens[kDotTokens];
      for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.x + scratch.x_places.at(uses[u] / desc_.top_k);
      for (int64_t row = begin; row < end; row += kDotRowBlock) {
        const int64_t rows = std::min(kDotRowBlock, end - row);
        const DotTokens given{form_, tokens, count, scratch.x_places.block_stride()};
        kernel_.dot(dot_rows(gate, row, rows), given, gates, kDotRowBlock);
        kernel_.dot(dot_rows(up, row, rows), given, ups, kDotRowBlock);
        const auto multiply = [=](cpu::F4 g, cpu::F4 u) { return cpu::fast_silu(g * gate_scale) * (u * up_scale); };
        for (int64_t u = 0; u < count; ++u) {
          cpu::map_lanes(rows, scratch.hidden.row<T>(uses[u]) + row, multiply, gates + u * kDotRowBlock,
                         ups + u * kDotRowBlock);
        }
      }
    });
  }

  void show_hidden(const Scratch& scratch, const Launch& launch) const {
    cpu::with_activation(desc_.activation, [&]<class T>() {
      for (int64_t use = 0; use < scratch.hidden.rows; ++use) {
        const T* from = scratch.hidden.row<T>(use);
        std::transform(from, from + desc_.intermediate, scratch.tapped.row<float>(use),
                       [](T value) { return cpu::to_float(value); });
      }
    });
    launch.taps->record("experts.hidden", launch.layer, scratch.tapped);
  }

  // sums[t, n] = sum over the chosen experts, for n in [begin, end).
  void down(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < args.tokens.total; ++t) {
      std::fill_n(scratch.sums + t * desc_.hidden + begin, end - begin, 0.0f);
    }
    float dots[kDotTokens * kDotRowBlock];
    prefetch_expert(scratch, 0, kDown, begin);
    scratch.groups.for_each_tile(kDotTokens, [&](size_t expert, const int32_t* uses, int64_t count) {
      prefetch_expert(scratch, expert + 1, kDown, begin);
      const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + 2];
      const float scale = dot_scale(matrix);
      const std::byte* tokens[kDotTokens];
      for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.h + scratch.h_places.at(uses[u]);
      for (int64_t n = begin; n < end; n += kDotRowBlock) {
        const int64_t rows = std::min(kDotRowBlock, end - n);
        kernel_.dot(dot_rows(matrix, n, rows), {form_, tokens, count, scratch.h_places.block_stride()}, dots,
                    kDotRowBlock);
        for (int64_t u = 0; u < count; ++u) {
          const int64_t t = uses[u] / desc_.top_k;
          const float weight = args.weights.row<float>(t)[uses[u] % desc_.top_k];
          float* sums = scratch.sums + t * desc_.hidden + n;
          const float* dot = dots + u * kDotRowBlock;
          for (int64_t r = 0; r < rows; ++r) sums[r] += weight * (dot[r] * scale);
        }
      }
    });
  }

  template <class T>
  void finish(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < args.tokens.total; ++t) {
      const float* sums = scratch.sums + t * desc_.hidden;
      const T* shared = args.shared ? args.shared.row<T>(t) : nullptr;
      const float shared_scale = args.shared ? *args.shared_scale.row<float>(t) : 0.0f;
      const T* residual = args.residual ? args.residual.row<T>(t) : nullptr;
      T* y = args.y.row<T>(t);
      for (int64_t n = begin; n < end; ++n) {
        const float sum = shared == nullptr ? sums[n] : sums[n] + shared_scale * cpu::to_float(shared[n]);
        const float value = cpu::round_through<T>(sum);
        y[n] = cpu::from_float<T>(residual == nullptr ? value : cpu::to_float(residual[n]) + value);
      }
    }
  }

  const CpuDot& kernel_;
  DotForm form_;
  ExpertsDesc desc_;
  const WeightSource& source_;
};

template <const CpuDot& kKernel>
Impl<ExpertsOp> experts_cpu_dot() {
  return {.name = kKernel.row,
          .backend = Backend::kCpu,
          .order =
              [](const ExpertsDesc& desc) {
                return order_id("experts " + std::string(kKernel.order(desc.format, desc.activation)));
              },
          .layout = [](const ExpertsDesc&) { return &kFileLayout; },
          .can_run = [](const ExpertsDesc& desc, const DeviceCaps& caps) -> Refusal {
            Refusal refusal = refuse_weight_only(desc);
            return refusal ? refusal : kKernel.refuse(desc.format, desc.activation, caps);
          },
          .workspace_bytes =
              [](const ExpertsDesc& desc, const Bucket& bucket, MakeContext&) {
                return ExpertsCpuDot::workspace_bytes(kKernel.form(desc.format, desc.activation), desc, bucket.tokens);
              },
          .make = [](const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<ExpertsOp>> {
            ASSAY_ASSIGN(const WeightSource* source, checked_experts(context.weights, weights.experts, desc));
            return PlanPtr<ExpertsOp>(std::make_unique<ExpertsCpuDot>(kKernel, desc, *source));
          }};
}

}  // namespace assay::ops
