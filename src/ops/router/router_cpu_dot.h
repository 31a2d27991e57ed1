// router on an instruction set of cpu_dot.h: first the logits, blocks of 16 rows of the gate over the threads, then the
// choice, tokens over the threads.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/convert.h"
#include "ops/cpu_dot.h"
#include "ops/router/router_cpu_choice.h"
#include "ops/router/router_rows.h"
#include "ops/workspace.h"

namespace assay::ops {

class RouterCpuDot : public Plan<RouterOp::Args> {
 public:
  RouterCpuDot(const CpuDot& kernel, const RouterDesc& desc, std::vector<numeric::EncodedMatrix> matrices)
      : kernel_(kernel),
        form_(kernel.form(desc.format, desc.activation, 1)),
        desc_(desc),
        matrices_(std::move(matrices)) {}

  static size_t workspace_bytes(DotForm form, const RouterDesc& desc, int64_t tokens) {
    Workspace counted;
    carve(form, desc, tokens, counted);
    return counted.used();
  }

  void enqueue(const RouterOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden && args.x.dtype == desc_.activation, "router {}: {} columns", describe(desc_),
          args.x.cols);
    Workspace workspace(launch.workspace);
    const Scratch scratch = carve(form_, desc_, tokens, workspace);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    const DotPlaces places{form_, tokens, desc_.hidden};
    kernel_.prepare({{form_, 0, desc_.hidden}, places}, args.x, scratch.x, pool);
    const int64_t groups = (tokens + kDotTokens - 1) / kDotTokens;
    const int64_t grain =
        block_grain(desc_.hidden * std::min(tokens, kDotTokens), dot_bytes(desc_.format, desc_.hidden));
    const int64_t blocks = (desc_.experts + kDotRowBlock - 1) / kDotRowBlock;
    pool.parallel_for(groups * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        logits(scratch, places, item / blocks * kDotTokens, item % blocks * kDotRowBlock);
      }
    });
    pool.parallel_for(tokens, route_grain(desc_), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) route(desc_, args, t, scratch.logits + t * (desc_.experts + 1));
    });
  }

 private:
  struct Scratch {
    std::byte* x;   // [T] in the kernel's form
    float* logits;  // [T, experts + 1]
  };

  static Scratch carve(DotForm form, const RouterDesc& desc, int64_t tokens, Workspace& workspace) {
    Scratch scratch;
    scratch.x =
        static_cast<std::byte*>(workspace.take(DType::kU8, 1, DotPlaces{form, tokens, desc.hidden}.bytes()).data);
    scratch.logits = static_cast<float*>(workspace.take(DType::kF32, tokens, desc.experts + 1).data);
    return scratch;
  }

  // Of up to kDotTokens tokens from `first`, and a block of the gate's rows; with the last block the shared gate's.
  void logits(const Scratch& scratch, const DotPlaces& places, int64_t first, int64_t row) const {
    const std::byte* x[kDotTokens];
    const int64_t count = std::min(kDotTokens, places.tokens - first);
    for (int64_t t = 0; t < count; ++t) x[t] = scratch.x + places.at(first + t);
    const int64_t rows = std::min<int64_t>(kDotRowBlock, desc_.experts - row);
    add_rows(scratch, {form_, x, count, places.block_stride()}, matrices_[0], row, rows, first, row);
    if (desc_.shared_gate && row + rows == desc_.experts) {
      add_rows(scratch, {form_, x, count, places.block_stride()}, matrices_[1], 0, 1, first, desc_.experts);
    }
  }

  // logits[first + t][column + r] = dot(row + r, token t), rounded.
  void add_rows(const Scratch& scratch, const DotTokens& x, const numeric::EncodedMatrix& matrix, int64_t row,
                int64_t rows, int64_t first, int64_t column) const {
    const int64_t stride = desc_.experts + 1;
    float* out = scratch.logits + first * stride + column;
    kernel_.dot(dot_rows(matrix, row, rows), x, out, stride);
    const float scale = dot_scale(matrix);
    const bool bf16 = desc_.activation == DType::kBf16;
    for (int64_t t = 0; t < x.count; ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        const float value = out[t * stride + r] * scale;
        out[t * stride + r] = bf16 ? cpu::round_through<cpu::Bf16>(value) : value;
      }
    }
  }

  const CpuDot& kernel_;
  DotForm form_;
  RouterDesc desc_;
  std::vector<numeric::EncodedMatrix> matrices_;
};

template <const CpuDot& kKernel>
Impl<RouterOp> router_cpu_dot() {
  return {.name = kKernel.row,
          .backend = Backend::kCpu,
          .order =
              [](const RouterDesc& desc) {
                return order_id("router " + std::string(kKernel.order(desc.format, desc.activation)));
              },
          .layout = [](const RouterDesc&) { return &kFileLayout; },
          .can_run = [](const RouterDesc& desc, const DeviceCaps& caps) -> Refusal {
            Refusal refusal = refuse_router(desc);
            return refusal ? refusal : kKernel.refuse(desc.format, desc.activation, caps);
          },
          .workspace_bytes =
              [](const RouterDesc& desc, const Bucket& bucket, MakeContext&) {
                return RouterCpuDot::workspace_bytes(kKernel.form(desc.format, desc.activation, 1), desc,
                                                     bucket.tokens);
              },
          .make = [](const RouterDesc& desc, const Bucket&, const RouterOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<RouterOp>> {
            ASSAY_ASSIGN(auto matrices, router_matrices(context.weights, desc, weights));
            return PlanPtr<RouterOp>(std::make_unique<RouterCpuDot>(kKernel, desc, std::move(matrices)));
          }};
}

}  // namespace assay::ops
