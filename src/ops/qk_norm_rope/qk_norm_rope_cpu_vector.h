// qk_norm_rope on an instruction set of cpu_vector.h: tokens over threads; per token the cosines once, then head by
// head through one fp32 row. Bound by reading qkv: (heads * q_width + 2 * kv_heads * head_dim) elements a token. Each
// token stands alone, so nothing depends on the batch.
#pragma once

#include <cmath>
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "ops/cpu_vector.h"
#include "ops/cpu_weight.h"
#include "ops/host_launch.h"
#include "ops/qk_norm_rope/qk_norm_rope_rows.h"

namespace assay::ops {

class QkNormRopeCpuVector : public Plan<QkNormRopeOp::Args> {
 public:
  static constexpr int32_t kMaxHeadDim = 1024;  // fp32 rows on the stack

  QkNormRopeCpuVector(const CpuVector& set, const QkNormRopeDesc& desc, std::vector<float> q_norm,
                      std::vector<float> k_norm)
      : set_(set), desc_(desc), q_gain_(std::move(q_norm)), k_gain_(std::move(k_norm)) {
    for (float& gain : q_gain_) gain += 1.0f;
    for (float& gain : k_gain_) gain += 1.0f;
    for (int32_t i = 0; i < desc.rotary_dim / 2; ++i) {
      inverse_frequency_.push_back(static_cast<float>(std::pow(desc.theta, -2.0 * i / desc.rotary_dim)));
    }
  }

  void enqueue(const QkNormRopeOp::Args& args, const Launch& launch) const override {
    CHECK(args.qkv.dtype == desc_.activation && args.q_out.dtype == desc_.activation && args.cache.dtype == desc_.cache,
          "dtypes differ from the plan's");
    constexpr int64_t kTokensPerPiece = 4;  // some microseconds
    const int64_t tokens = token_total(args.batch.tokens);
    set_.with(desc_.activation, [&](const auto& activation) {
      set_.with(desc_.cache, [&](const auto& cache) {
        cpu::pool_of(launch.stream).parallel_for(tokens, kTokensPerPiece, [&](int64_t begin, int64_t end) {
          bool finite = true;
          for (int64_t token = begin; token < end; ++token) finite &= run_token(activation, cache, args, token);
          if (!finite) raise_flags(launch, Sentinel::kNonFiniteKv);
        });
      });
    });
  }

 private:
  struct Angles {
    float cosine[kMaxHeadDim / 2];
    float sine[kMaxHeadDim / 2];
  };

  // head = rope(n(x) * gain)
  template <class E>
  void turn(const VectorFunctions<E>& functions, const E* x, const std::vector<float>& gain, const Angles& angles,
            float* head) const {
    const float mean = functions.sum_of_squares(x, desc_.head_dim) / static_cast<float>(desc_.head_dim);
    functions.rope(x, gain.data(), 1.0f / std::sqrt(mean + desc_.eps), angles.cosine, angles.sine, desc_.rotary_dim / 2,
                   head, desc_.head_dim);
  }

  // False when a value that went to the cache is not finite.
  template <class E, class C>
  bool run_token(const VectorFunctions<E>& activation, const VectorFunctions<C>& stored, const QkNormRopeOp::Args& args,
                 int64_t token) const {
    const BatchView& batch = args.batch;
    const KvCacheView& cache = args.cache;
    const int32_t position = batch.positions[token];
    const int32_t dim = desc_.head_dim;
    const int64_t q_width = int64_t{dim} * (desc_.output_gate ? 2 : 1);
    Angles angles;
    set_.kernels.angles(inverse_frequency_.data(), static_cast<float>(position), angles.cosine, angles.sine,
                        static_cast<int64_t>(inverse_frequency_.size()));
    float head[kMaxHeadDim];
    const E* source = args.qkv.row<E>(token);
    for (int32_t h = 0; h < desc_.heads; ++h, source += q_width) {
      turn(activation, source, q_gain_, angles, head);
      activation.divide(head, 1.0f, args.q_out.row<E>(token) + int64_t{h} * dim, dim);
    }
    const int64_t page =
        batch.page_table[int64_t{batch.sequence_of[token]} * batch.page_table_stride + position / cache.page_tokens];
    const E* values = source + int64_t{desc_.kv_heads} * dim;
    bool finite = true;
    for (int32_t h = 0; h < desc_.kv_heads; ++h, source += dim, values += dim) {
      const int64_t target = cache.offset(page, h, position % cache.page_tokens);
      C* k = static_cast<C*>(cache.k) + target;
      C* v = static_cast<C*>(cache.v) + target;
      turn(activation, source, k_gain_, angles, head);
      stored.divide(head, cache.k_scale, k, dim);
      activation.scale(values, 1.0f, head, dim);
      stored.divide(head, cache.v_scale, v, dim);
      finite &= all_finite(k, dim) && all_finite(v, dim);
    }
    return finite;
  }

  const CpuVector& set_;
  QkNormRopeDesc desc_;
  std::vector<float> q_gain_;  // 1 + weight
  std::vector<float> k_gain_;
  std::vector<float> inverse_frequency_;
};

template <const CpuVector& kSet>
Impl<QkNormRopeOp> qk_norm_rope_cpu_vector() {
  return {.name = kSet.row,
          .backend = Backend::kCpu,
          .order = [](const QkNormRopeDesc&) { return order_id("qk_norm_rope: sixteen lanes"); },
          .layout = [](const QkNormRopeDesc&) { return LayoutId{nullptr}; },
          .can_run = [](const QkNormRopeDesc& desc, const DeviceCaps& caps) -> Refusal {
            constexpr int32_t kMost = QkNormRopeCpuVector::kMaxHeadDim;
            if (desc.head_dim > kMost) return fmt::format("head_dim above {}", kMost);
            if (Refusal refusal = kSet.refuse(desc.activation, caps)) return refusal;
            return refuse_qk_norm_rope(desc, caps);
          },
          .workspace_bytes = [](const QkNormRopeDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
          .make = [](const QkNormRopeDesc& desc, const Bucket&, const QkNormRopeOp::Weights& weights,
                     MakeContext& context) -> Result<PlanPtr<QkNormRopeOp>> {
            ASSAY_ASSIGN(auto q_norm, load_cpu_vector(context.weights, weights.q_norm, 1, desc.head_dim));
            ASSAY_ASSIGN(auto k_norm, load_cpu_vector(context.weights, weights.k_norm, 1, desc.head_dim));
            return PlanPtr<QkNormRopeOp>(
                std::make_unique<QkNormRopeCpuVector>(kSet, desc, std::move(q_norm), std::move(k_norm)));
          }};
}

}  // namespace assay::ops
