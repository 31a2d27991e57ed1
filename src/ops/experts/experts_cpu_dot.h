// experts on an instruction set of cpu_dot.h. Tokens are grouped by expert; a weight row is read once for up to 128 of
// them. Two parallel loops. The first is over all chosen experts' rows of gate and up, expert after expert, so that a
// thread reads long stretches of weights with the tokens of one expert in its cache. The second is over the `hidden`
// rows of down: a thread goes through all chosen experts for its rows, in ascending order, and has their sum.
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
      : kernel_(kernel), desc_(desc), source_(source) {}

  static size_t workspace_bytes(const CpuDot& kernel, const ExpertsDesc& desc, int32_t tokens) {
    Workspace counted;
    carve(kernel, desc, {0, tokens}, counted);
    return counted.used();
  }

  void enqueue(const ExpertsOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden && args.y.cols == desc_.hidden && args.ids.cols == desc_.top_k &&
              args.x.dtype == desc_.activation,
          "experts {}", describe(desc_));
    Workspace workspace(launch.workspace);
    const Scratch scratch = carve(kernel_, desc_, args.tokens, workspace);
    scratch.groups.fill(args.ids, tokens);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    kernel_.prepare(scratch.x_places, args.x, scratch.x, pool);
    const int64_t uses = tokens * desc_.top_k;
    const int64_t tiles = scratch.groups.tiles(kDotTokens);
    const auto grain = [&](int64_t macs, int64_t weights) {
      return block_grain(macs, dot_bytes(desc_.format, weights));
    };
    const int64_t parts = blocks(desc_.intermediate);
    const auto hidden_parts = [&](int64_t begin, int64_t end) {
      cpu::with_activation(desc_.activation, [&]<class T>() { hidden<T>(scratch, parts, begin, end); });
    };
    pool.parallel_for(tiles * parts, grain(uses * desc_.hidden * 2 / tiles, desc_.hidden * 2), hidden_parts);
    if (launch.taps != nullptr) show_hidden(scratch, launch);
    kernel_.prepare(scratch.h_places, scratch.hidden, scratch.h, pool);
    const auto output_blocks = [&](int64_t begin, int64_t end) {
      down(args, scratch, begin, end);
      cpu::with_activation(desc_.activation, [&]<class T>() { finish<T>(args, scratch, begin, end); });
    };
    pool.parallel_for(blocks(desc_.hidden), grain(uses * desc_.intermediate, tiles * desc_.intermediate),
                      output_blocks);
  }

 private:
  struct Scratch {
    ExpertGroups groups;
    StepPlaces x_places;
    StepPlaces h_places;
    std::byte* x;  // [T] in the kernel's form
    View hidden;   // [T * k, I], h in the activation dtype
    std::byte* h;  // [T * k] in the kernel's form
    float* sums;   // [hidden / 16, T, 16]
    View tapped;   // F32 [T * k, I]
  };

  static Scratch carve(const CpuDot& kernel, const ExpertsDesc& desc, const TokenCounts& given, Workspace& workspace) {
    const int32_t tokens = given.total, uses = tokens * desc.top_k;
    const int64_t sharing = uses / desc.experts;
    const auto take = [&](int64_t columns, int32_t rows) {
      const int64_t bytes = kernel.most_bytes(desc.format, desc.activation, columns, rows, sharing);
      return static_cast<std::byte*>(workspace.take(DType::kU8, 1, bytes).data);
    };
    Scratch scratch;
    scratch.groups = ExpertGroups(desc.experts, desc.top_k, tokens, workspace);
    scratch.x_places = kernel.places(desc.format, desc.activation, desc.hidden, given, sharing);
    scratch.h_places =
        kernel.places(desc.format, desc.activation, desc.intermediate, {given.decode * desc.top_k, uses}, sharing);
    scratch.x = take(desc.hidden, tokens);
    scratch.hidden = workspace.take(desc.activation, uses, desc.intermediate);
    scratch.h = take(desc.intermediate, uses);
    scratch.sums = static_cast<float*>(workspace.take(DType::kF32, blocks(desc.hidden) * tokens, kDotRowBlock).data);
    scratch.tapped = workspace.take(DType::kF32, uses, desc.intermediate);
    return scratch;
  }

  static int64_t blocks(int64_t rows) { return (rows + kDotRowBlock - 1) / kDotRowBlock; }

  struct Matrices {
    size_t first, last;
  };
  static constexpr Matrices kGateUp{0, 2}, kDown{2, 3};  // of an expert's three

  // Asks for rows from `row` on of the first chosen expert from `from` on. A thread meets rows in stretches of some KiB
  // that lie far apart, so that nothing else sees the next one coming.
  void prefetch_expert(const Scratch& scratch, size_t from, Matrices matrices, int64_t row) const {
    const auto expert = static_cast<size_t>(scratch.groups.chosen_from(static_cast<int32_t>(from)));
    if (expert == static_cast<size_t>(desc_.experts)) return;
    for (size_t i = matrices.first; i < matrices.last; ++i) {
      const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + i];
      prefetch_start(dot_rows(matrix, row, std::min(kDotRowBlock, matrix.rows - row)));
    }
  }

  // body(uses, count) with those of a tile that have one phase.
  template <class Body>
  static void by_phase(const Scratch& scratch, const int32_t* uses, int64_t count, const Body& body) {
    const int64_t decode = std::lower_bound(uses, uses + count, scratch.h_places.decode.tokens) - uses;
    if (decode > 0) body(uses, decode);
    if (decode < count) body(uses + decode, count - decode);
  }

  // h for parts [begin, end), blocks of rows counted through all tiles.
  template <class T>
  void hidden(const Scratch& scratch, int64_t parts, int64_t begin, int64_t end) const {
    const auto tile = [&](size_t expert, const int32_t* uses, int64_t count, int64_t first, int64_t last) {
      const int64_t end_row = std::min(desc_.intermediate, last * kDotRowBlock);
      by_phase(scratch, uses, count, [&](const int32_t* some, int64_t few) {
        hidden_rows<T>(scratch, expert, some, few, first * kDotRowBlock, end_row);
      });
    };
    scratch.groups.for_each_part(kDotTokens, parts, begin, end, tile);
  }

  // Rows [begin, end) of h for `count` uses of an expert.
  template <class T>
  void hidden_rows(const Scratch& scratch, size_t expert, const int32_t* uses, int64_t count, int64_t begin,
                   int64_t end) const {
    prefetch_expert(scratch, expert, kGateUp, begin);
    prefetch_expert(scratch, expert + 1, kGateUp, 0);
    const numeric::EncodedMatrix& gate = source_.matrices[3 * expert];
    const numeric::EncodedMatrix& up = source_.matrices[3 * expert + 1];
    const float gate_scale = dot_scale(gate), up_scale = dot_scale(up);
    const auto multiply = [=](cpu::F4 g, cpu::F4 u) { return cpu::fast_silu(g * gate_scale) * (u * up_scale); };
    const std::byte* tokens[kDotTokens];
    for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.x + scratch.x_places.at(uses[u] / desc_.top_k);
    const DotPlaces& places = scratch.x_places.of(uses[0] / desc_.top_k);
    const DotTokens given{places.form, tokens, count, places.block_stride()};
    float gates[kDotSums], ups[kDotSums];
    const int64_t most = dot_call_rows(count);
    for (int64_t row = begin, rows; row < end; row += rows) {
      rows = std::min(most, end - row);
      kernel_.dot(dot_rows(gate, row, rows), given, gates, rows);
      kernel_.dot(dot_rows(up, row, rows), given, ups, rows);
      for (int64_t u = 0; u < count; ++u) {
        cpu::map_lanes(rows, scratch.hidden.row<T>(uses[u]) + row, multiply, gates + u * rows, ups + u * rows);
      }
    }
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

  // The sums over the chosen experts, for blocks [begin, end) of outputs.
  void down(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    const int64_t all = args.tokens.total;
    std::fill_n(scratch.sums + begin * all * kDotRowBlock, (end - begin) * all * kDotRowBlock, 0.0f);
    float dots[kDotSums];
    prefetch_expert(scratch, 0, kDown, begin * kDotRowBlock);
    scratch.groups.for_each_tile(kDotTokens, [&](size_t expert, const int32_t* uses, int64_t count) {
      prefetch_expert(scratch, expert + 1, kDown, begin * kDotRowBlock);
      by_phase(scratch, uses, count, [&](const int32_t* some, int64_t few) {
        add_expert(args, scratch, expert, some, few, begin, end, dots);
      });
    });
  }

  // An expert's share of the sums of `count` uses of one phase. dots: scratch.
  void add_expert(const ExpertsOp::Args& args, const Scratch& scratch, size_t expert, const int32_t* uses,
                  int64_t count, int64_t begin, int64_t end, float* dots) const {
    const int64_t all = args.tokens.total;
    const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + 2];
    const float scale = dot_scale(matrix);
    const std::byte* tokens[kDotTokens];
    for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.h + scratch.h_places.at(uses[u]);
    const DotPlaces& places = scratch.h_places.of(uses[0]);
    const DotTokens given{places.form, tokens, count, places.block_stride()};
    const int64_t most = dot_call_rows(count) / kDotRowBlock;
    for (int64_t block = begin, blocks; block < end; block += blocks) {
      blocks = std::min(most, end - block);
      const int64_t row = block * kDotRowBlock, rows = std::min(blocks * kDotRowBlock, desc_.hidden - row);
      kernel_.dot(dot_rows(matrix, row, rows), given, dots, rows);
      for (int64_t u = 0; u < count; ++u) {
        const int64_t t = uses[u] / desc_.top_k;
        const float weight = args.weights.row<float>(t)[uses[u] % desc_.top_k];
        const auto add = [=](cpu::F4 sum, cpu::F4 dot) { return sum + weight * (dot * scale); };
        for (int64_t r = 0; r < rows; r += kDotRowBlock) {
          float* sums = scratch.sums + ((row + r) / kDotRowBlock * all + t) * kDotRowBlock;
          cpu::map_lanes(std::min(kDotRowBlock, rows - r), sums, add, sums, dots + u * rows + r);
        }
      }
    }
  }

  int64_t block_rows(int64_t block) const { return std::min(kDotRowBlock, desc_.hidden - block * kDotRowBlock); }

  template <class T>
  void finish(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n = block * kDotRowBlock, rows = block_rows(block);
      for (int64_t t = 0; t < args.tokens.total; ++t) {
        float* sums = scratch.sums + (block * args.tokens.total + t) * kDotRowBlock;
        if (args.shared) {
          const float scale = *args.shared_scale.row<float>(t);
          const auto add = [=](cpu::F4 sum, cpu::F4 shared) { return sum + scale * shared; };
          cpu::map_lanes(rows, sums, add, sums, args.shared.row<T>(t) + n);
        }
        T* y = args.y.row<T>(t) + n;
        if (args.residual) {
          const auto add = [](cpu::F4 sum, cpu::F4 residual) { return residual + cpu::round_through<T>(sum); };
          cpu::map_lanes(rows, y, add, sums, args.residual.row<T>(t) + n);
        } else {
          cpu::map_lanes(
              rows, y, [](cpu::F4 sum) { return sum; }, sums);
        }
      }
    }
  }

  const CpuDot& kernel_;
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
          .workspace_bytes = [](const ExpertsDesc& desc, const Bucket& bucket,
                                MakeContext&) { return ExpertsCpuDot::workspace_bytes(kKernel, desc, bucket.tokens); },
          .make = [](const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<ExpertsOp>> {
            ASSAY_ASSIGN(const WeightSource* source, checked_experts(context.weights, weights.experts, desc));
            return PlanPtr<ExpertsOp>(std::make_unique<ExpertsCpuDot>(kKernel, desc, *source));
          }};
}

}  // namespace assay::ops
