// qk_norm_rope in plain C++: tokens over threads; per token the cosines once, then head by head through one fp32 row.
// Bound by reading qkv: (heads * q_width + 2 * kv_heads * head_dim) elements a token. Each token stands alone, so
// nothing depends on the batch. The sum of squares takes the lane order of backend/cpu/lanes.h.
#include <cmath>
#include <vector>

#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/cpu_weight.h"
#include "ops/host_launch.h"
#include "ops/qk_norm_rope/qk_norm_rope_rows.h"

namespace assay::ops {
namespace {

constexpr int32_t kMaxHeadDim = 1024;  // fp32 rows on the stack

class CpuPortable : public Plan<QkNormRopeOp::Args> {
 public:
  CpuPortable(const QkNormRopeDesc& desc, std::vector<float> q_norm, std::vector<float> k_norm)
      : desc_(desc), q_gain_(std::move(q_norm)), k_gain_(std::move(k_norm)) {
    for (float& gain : q_gain_) gain += 1.0f;
    for (float& gain : k_gain_) gain += 1.0f;
    for (int32_t i = 0; i < desc.rotary_dim / 2; ++i) {
      inverse_frequency_.push_back(static_cast<float>(std::pow(desc.theta, -2.0 * i / desc.rotary_dim)));
    }
  }

  void enqueue(const QkNormRopeOp::Args& args, const Launch& launch) const override {
    CHECK(args.qkv.dtype == desc_.activation && args.q_out.dtype == desc_.activation && args.cache.dtype == desc_.cache,
          "dtypes differ from the plan's");
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::with_activation(desc_.cache, [&]<class C>() {
        cpu::pool_of(launch.stream).parallel_for(token_total(args.batch.tokens), 1, [&](int64_t begin, int64_t end) {
          bool bad = false;
          for (int64_t token = begin; token < end; ++token) bad |= run_token<T, C>(args, token);
          if (bad) raise_flags(launch, Sentinel::kNonFiniteKv);
        });
      });
    });
  }

 private:
  struct Angles {
    float cosine[kMaxHeadDim / 2];
    float sine[kMaxHeadDim / 2];
  };

  Angles angles_at(int32_t position) const {
    Angles angles;
    for (size_t i = 0; i < inverse_frequency_.size(); ++i) {
      const double angle = static_cast<float>(position) * inverse_frequency_[i];
      angles.cosine[i] = static_cast<float>(std::cos(angle));
      angles.sine[i] = static_cast<float>(std::sin(angle));
    }
    return angles;
  }

  // head = rope(n(source) * gain)
  template <class T>
  void turn(const T* source, const std::vector<float>& gain, const Angles& angles, float* head) const {
    const int32_t dim = desc_.head_dim;
    const int32_t half = desc_.rotary_dim / 2;
    for (int32_t d = 0; d < dim; ++d) head[d] = cpu::to_float(source[d]);
    const float mean = cpu::sum_of_squares(head, dim) / static_cast<float>(dim);
    const float scale = 1.0f / std::sqrt(mean + desc_.eps);
    for (int32_t d = 0; d < dim; ++d) head[d] *= scale * gain[static_cast<size_t>(d)];
    float* low = head;
    float* high = head + half;
    for (int32_t i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = a * angles.cosine[i] - b * angles.sine[i];
      high[i] = b * angles.cosine[i] + a * angles.sine[i];
    }
  }

  template <class T>
  static void write(const float* head, int32_t dim, float scale, T* out) {
    for (int32_t d = 0; d < dim; ++d) out[d] = cpu::from_float<T>(head[d] / scale);
  }

  // True when a value that went to the cache is not finite.
  template <class T, class C>
  bool run_token(const QkNormRopeOp::Args& args, int64_t token) const {
    const BatchView& batch = args.batch;
    const KvCacheView& cache = args.cache;
    const int32_t position = batch.positions[token];
    const int32_t dim = desc_.head_dim;
    const int64_t q_width = int64_t{dim} * (desc_.output_gate ? 2 : 1);
    const Angles angles = angles_at(position);
    float head[kMaxHeadDim];
    const T* source = args.qkv.row<T>(token);
    for (int32_t h = 0; h < desc_.heads; ++h, source += q_width) {
      turn(source, q_gain_, angles, head);
      write(head, dim, 1.0f, args.q_out.row<T>(token) + int64_t{h} * dim);
    }
    const int64_t page =
        batch.page_table[int64_t{batch.sequence_of[token]} * batch.page_table_stride + position / cache.page_tokens];
    const T* values = source + int64_t{desc_.kv_heads} * dim;
    bool bad = false;
    for (int32_t h = 0; h < desc_.kv_heads; ++h, source += dim, values += dim) {
      const int64_t target = cache.offset(page, h, position % cache.page_tokens);
      C* k = static_cast<C*>(cache.k) + target;
      C* v = static_cast<C*>(cache.v) + target;
      turn(source, k_gain_, angles, head);
      write(head, dim, cache.k_scale, k);
      for (int32_t d = 0; d < dim; ++d) head[d] = cpu::to_float(values[d]);
      write(head, dim, cache.v_scale, v);
      bad |= cpu::any_non_finite(k, dim) || cpu::any_non_finite(v, dim);
    }
    return bad;
  }

  QkNormRopeDesc desc_;
  std::vector<float> q_gain_;  // 1 + weight
  std::vector<float> k_gain_;
  std::vector<float> inverse_frequency_;
};

Refusal can_run(const QkNormRopeDesc& desc, const DeviceCaps& caps) {
  if (desc.head_dim > kMaxHeadDim) return fmt::format("head_dim above {}", kMaxHeadDim);
  return refuse_qk_norm_rope(desc, caps);
}

Result<std::unique_ptr<Plan<QkNormRopeOp::Args>>> make(const QkNormRopeDesc& desc, const Bucket&,
                                                       const QkNormRopeOp::Weights& weights, MakeContext& context) {
  ASSAY_ASSIGN(auto q_norm, load_cpu_vector(context.weights, weights.q_norm, 1, desc.head_dim));
  ASSAY_ASSIGN(auto k_norm, load_cpu_vector(context.weights, weights.k_norm, 1, desc.head_dim));
  return std::unique_ptr<Plan<QkNormRopeOp::Args>>(new CpuPortable(desc, std::move(q_norm), std::move(k_norm)));
}

}  // namespace

constinit const Impl<QkNormRopeOp> kQkNormRopeCpuPortable = {
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const QkNormRopeDesc&) { return order_id("qk_norm_rope: eight lanes"); },
    .layout = [](const QkNormRopeDesc&) { return LayoutId{nullptr}; },
    .can_run = can_run,
    .workspace_bytes = [](const QkNormRopeDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = make};

}  // namespace assay::ops
