// linear on an instruction set of cpu_dot.h: blocks of 16 outputs are split over the threads; each walks tokens 128 at
// a time. Weights are read from the checkpoint's bytes once per 128 tokens. One token: bound by reading them; many: by
// the multiply-adds.
#pragma once

#include <algorithm>

#include "backend/cpu/convert.h"
#include "ops/checked_source.h"
#include "ops/cpu_dot.h"
#include "ops/linear/linear_rows.h"

namespace assay::ops {

class LinearCpuDot : public Plan<LinearOp::Args> {
 public:
  LinearCpuDot(const CpuDot& kernel, const LinearDesc& desc, const WeightSource& source)
      : kernel_(kernel), desc_(desc), source_(source) {}

  void enqueue(const LinearOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.k && args.y.cols == desc_.n && args.x.dtype == desc_.activation,
          "linear {}: x [, {}], y [, {}]", describe(desc_), args.x.cols, args.y.cols);
    auto* x = static_cast<std::byte*>(launch.workspace.data);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    const StepPlaces places = kernel_.places(desc_.format, desc_.activation, desc_.k, args.tokens, tokens);
    kernel_.prepare(places, args.x, x, pool);
    const int64_t blocks = (desc_.n + kDotRowBlock - 1) / kDotRowBlock;
    const int64_t grain = block_grain(desc_.k * tokens, dot_bytes(desc_.format, desc_.k));
    pool.parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0, count; t < tokens; t += count) {
        count = places.run(t);
        cpu::with_activation(desc_.output, [&]<class Out>() {
          outputs<Out>(args, places, x, t, count, begin * kDotRowBlock, std::min(desc_.n, end * kDotRowBlock));
        });
      }
    });
  }

 private:
  // Outputs [begin, end) of tokens [first, first + count).
  template <class Out>
  void outputs(const LinearOp::Args& args, const StepPlaces& places, const std::byte* x, int64_t first, int64_t count,
               int64_t begin, int64_t end) const {
    const std::byte* tokens[kDotTokens];
    for (int64_t t = 0; t < count; ++t) tokens[t] = x + places.at(first + t);
    const DotTokens given{places.of(first).form, tokens, count, places.of(first).block_stride()};
    const int64_t block = dot_call_rows(count);
    float dots[kDotSums];
    size_t shard = 0;
    int64_t shard_begin = 0;
    for (int64_t n = begin; n < end;) {
      while (n >= shard_begin + source_.matrices[shard].rows) shard_begin += source_.matrices[shard++].rows;
      const numeric::EncodedMatrix& matrix = source_.matrices[shard];
      const int64_t rows = std::min({block, end - n, shard_begin + matrix.rows - n});
      kernel_.dot(dot_rows(matrix, n - shard_begin, rows), given, dots, block);
      const float scale = dot_scale(matrix);
      for (int64_t t = 0; t < count; ++t) {
        const Out* residual = args.residual ? args.residual.row<Out>(first + t) + n : nullptr;
        finish(dots + t * block, rows, scale, residual, args.y.row<Out>(first + t) + n);
      }
      n += rows;
    }
  }

  template <class Out>
  static void finish(const float* dots, int64_t rows, float scale, const Out* residual, Out* y) {
    if (residual == nullptr) {
      for (int64_t r = 0; r < rows; ++r) y[r] = cpu::from_float<Out>(dots[r] * scale);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        y[r] = cpu::from_float<Out>(cpu::to_float(residual[r]) + cpu::round_through<Out>(dots[r] * scale));
      }
    }
  }

  const CpuDot& kernel_;
  LinearDesc desc_;
  const WeightSource& source_;
};

template <const CpuDot& kKernel>
Impl<LinearOp> linear_cpu_dot() {
  return {.name = kKernel.row,
          .backend = Backend::kCpu,
          .order = [](const LinearDesc& desc) { return order_id(kKernel.order(desc.format, desc.activation)); },
          .layout = [](const LinearDesc&) { return &kFileLayout; },
          .can_run = [](const LinearDesc& desc, const DeviceCaps& caps) -> Refusal {
            Refusal refusal = refuse_weight_only(desc);
            return refusal ? refusal : kKernel.refuse(desc.format, desc.activation, caps);
          },
          .workspace_bytes =
              [](const LinearDesc& desc, const Bucket& bucket, MakeContext&) {
                return static_cast<size_t>(
                    kKernel.most_bytes(desc.format, desc.activation, desc.k, bucket.tokens, bucket.tokens));
              },
          .make = [](const LinearDesc& desc, const Bucket&, const LinearOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<LinearOp>> {
            ASSAY_ASSIGN(const WeightSource* source,
                         checked_source(context.weights, weights.matrix, desc.n, desc.k, desc.format));
            return PlanPtr<LinearOp>(std::make_unique<LinearCpuDot>(kKernel, desc, *source));
          }};
}

}  // namespace assay::ops
