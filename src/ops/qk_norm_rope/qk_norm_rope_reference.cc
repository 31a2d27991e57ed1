// The definition of qk_norm_rope: fp64, one element at a time.
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "ops/host_launch.h"
#include "ops/qk_norm_rope/qk_norm_rope_rows.h"
#include "ops/reference.h"
#include "ops/reference_weight.h"

namespace assay::ops {
namespace {

class Reference : public Plan<QkNormRopeOp::Args> {
 public:
  Reference(const QkNormRopeDesc& desc, std::vector<double> q_norm, std::vector<double> k_norm)
      : desc_(desc), q_norm_(std::move(q_norm)), k_norm_(std::move(k_norm)) {
    for (int32_t i = 0; i < desc.rotary_dim / 2; ++i) {
      inverse_frequency_.push_back(static_cast<float>(std::pow(desc.theta, -2.0 * i / desc.rotary_dim)));
    }
  }

  void enqueue(const QkNormRopeOp::Args& args, const Launch& launch) const override {
    cpu::pool_of(launch.stream).parallel_for(token_total(args.batch.tokens), 1, [&](int64_t begin, int64_t end) {
      bool finite = true;
      for (int64_t token = begin; token < end; ++token) finite = run_token(args, token) && finite;
      if (!finite) raise_flags(launch, Sentinel::kNonFiniteKv);
    });
  }

 private:
  // Element d of the head at column `first`, normed.
  struct Head {
    const ConstView& qkv;
    int64_t token;
    int64_t first;
    const std::vector<double>& weight;
    double scale;
    double operator[](int32_t d) const {
      return reference::load(qkv, token, first + d) * scale * (1.0 + weight[static_cast<size_t>(d)]);
    }
  };

  Head normed(const QkNormRopeOp::Args& args, int64_t token, int64_t first, const std::vector<double>& weight) const {
    double sum = 0;
    for (int32_t d = 0; d < desc_.head_dim; ++d) {
      const double x = reference::load(args.qkv, token, first + d);
      sum += x * x;
    }
    return {args.qkv, token, first, weight, 1.0 / std::sqrt(sum / desc_.head_dim + desc_.eps)};
  }

  double rotated(const Head& head, int32_t d, int32_t position) const {
    if (d >= desc_.rotary_dim) return head[d];
    const int32_t half = desc_.rotary_dim / 2;
    const int32_t i = d < half ? d : d - half;
    const double angle = static_cast<float>(position) * inverse_frequency_[static_cast<size_t>(i)];
    if (d < half) return head[i] * std::cos(angle) - head[i + half] * std::sin(angle);
    return head[i + half] * std::cos(angle) + head[i] * std::sin(angle);
  }

  // False when a value that went to the cache is not finite.
  bool run_token(const QkNormRopeOp::Args& args, int64_t token) const {
    const BatchView& batch = args.batch;
    const KvCacheView& cache = args.cache;
    const int32_t position = batch.positions[token];
    const int64_t page =
        batch.page_table[int64_t{batch.sequence_of[token]} * batch.page_table_stride + position / cache.page_tokens];
    const int64_t dim = desc_.head_dim;
    const int64_t q_width = dim * (desc_.output_gate ? 2 : 1);
    const int64_t first_k = desc_.heads * q_width;
    for (int32_t h = 0; h < desc_.heads; ++h) {
      const Head head = normed(args, token, h * q_width, q_norm_);
      for (int32_t d = 0; d < dim; ++d) reference::store(args.q_out, token, h * dim + d, rotated(head, d, position));
    }
    bool finite = true;
    for (int32_t h = 0; h < desc_.kv_heads; ++h) {
      const int64_t k_column = first_k + h * dim;
      const Head head = normed(args, token, k_column, k_norm_);
      const int64_t target = cache.offset(page, h, position % cache.page_tokens);
      for (int32_t d = 0; d < dim; ++d) {
        const double v = reference::load(args.qkv, token, k_column + desc_.kv_heads * dim + d);
        reference::store(cache.dtype, cache.k, target + d, rotated(head, d, position) / cache.k_scale);
        reference::store(cache.dtype, cache.v, target + d, v / cache.v_scale);
        finite = finite && std::isfinite(reference::load(cache.dtype, cache.k, target + d)) &&
                 std::isfinite(reference::load(cache.dtype, cache.v, target + d));
      }
    }
    return finite;
  }

  QkNormRopeDesc desc_;
  std::vector<double> q_norm_;
  std::vector<double> k_norm_;
  std::vector<float> inverse_frequency_;
};

Result<std::unique_ptr<Plan<QkNormRopeOp::Args>>> make(const QkNormRopeDesc& desc, const Bucket&,
                                                       const QkNormRopeOp::Weights& weights, MakeContext& context) {
  ASSAY_ASSIGN(auto q_norm, reference::load_weight(context.weights.source(weights.q_norm), 1, desc.head_dim));
  ASSAY_ASSIGN(auto k_norm, reference::load_weight(context.weights.source(weights.k_norm), 1, desc.head_dim));
  return std::unique_ptr<Plan<QkNormRopeOp::Args>>(new Reference(desc, std::move(q_norm), std::move(k_norm)));
}

}  // namespace

constinit const Impl<QkNormRopeOp> kQkNormRopeReference = {
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const QkNormRopeDesc&) { return OrderId::kNone; },
    .layout = [](const QkNormRopeDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_qk_norm_rope,
    .workspace_bytes = [](const QkNormRopeDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = make};

}  // namespace assay::ops
