// experts on any CPU. Tokens are grouped by expert, so that a weight row is decoded once for up to 32 of its tokens.
// Two parallel loops: over the I rows of gate and up, and over the `hidden` rows of down. A thread goes through all
// chosen experts for its rows, in ascending order: equal work for every thread, and one thread for one output element.
#include <algorithm>

#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "ops/experts/experts_rows.h"
#include "ops/portable_dot.h"

namespace assay::ops {
namespace {

using device::Arena;
using portable::kRowTile;
using portable::kTokenTile;

class ExpertsCpuPortable : public Plan<ExpertsOp::Args> {
 public:
  ExpertsCpuPortable(const ExpertsDesc& desc, const WeightSource& source) : desc_(desc), source_(source) {}

  static size_t workspace_bytes(const ExpertsDesc& desc, int64_t tokens) { return carve(desc, tokens, nullptr).bytes; }

  void enqueue(const ExpertsOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden && args.y.cols == desc_.hidden && args.ids.cols == desc_.top_k, "experts {}",
          describe(desc_));
    const Scratch scratch = carve(desc_, tokens, static_cast<std::byte*>(launch.workspace.data));
    group(args, scratch);
    portable::widen(args.x, tokens, scratch.x);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    const int64_t uses = tokens * desc_.top_k;
    pool.parallel_for(desc_.intermediate, portable::row_grain(uses * desc_.hidden * 2),
                      [&](int64_t begin, int64_t end) { hidden(scratch, begin, end); });
    if (launch.taps != nullptr) {
      launch.taps->record("experts.hidden", launch.layer,
                          ConstView(scratch.h, DType::kF32, uses, desc_.intermediate, dot_padded(desc_.intermediate)));
    }
    pool.parallel_for(desc_.hidden, portable::row_grain(uses * desc_.intermediate), [&](int64_t begin, int64_t end) {
      down(args, scratch, begin, end);
      cpu::with_activation(desc_.activation, [&]<class T>() { finish<T>(args, scratch, begin, end); });
    });
  }

 private:
  // A use is token * top_k + choice.
  struct Scratch {
    int32_t* start;  // [E + 1] of the uses of each expert
    int32_t* uses;   // [T * k] grouped by expert, ascending
    float* x;        // [T, padded hidden]
    float* h;        // [T * k, padded I]
    float* sums;     // [T, hidden]
    size_t bytes;
  };

  // Without a base only the size is computed.
  static Scratch carve(const ExpertsDesc& desc, int64_t tokens, std::byte* base) {
    Scratch scratch{};
    const auto take = [&]<class T>(T*& part, int64_t count) {
      if (base != nullptr) part = reinterpret_cast<T*>(base + scratch.bytes);
      scratch.bytes += Arena::round_up(static_cast<size_t>(count) * sizeof(T));
    };
    take(scratch.start, desc.experts + 1);
    take(scratch.uses, tokens * desc.top_k);
    take(scratch.x, tokens * dot_padded(desc.hidden));
    take(scratch.h, tokens * desc.top_k * dot_padded(desc.intermediate));
    take(scratch.sums, tokens * desc.hidden);
    return scratch;
  }

  // Counting sort of the uses by expert.
  void group(const ExpertsOp::Args& args, const Scratch& scratch) const {
    std::fill_n(scratch.start, desc_.experts + 1, 0);
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      for (int32_t i = 0; i < desc_.top_k; ++i) {
        const int32_t id = args.ids.row<int32_t>(t)[i];
        CHECK(id >= 0 && id < desc_.experts, "expert {} of {}, token {}", id, desc_.experts, t);
        ++scratch.start[id + 1];
      }
    }
    for (int32_t e = 0; e < desc_.experts; ++e) scratch.start[e + 1] += scratch.start[e];
    // Filled from each group's end; afterwards start[e + 1] has moved down to the start of e.
    for (int32_t t = args.tokens.total - 1; t >= 0; --t) {
      for (int32_t i = desc_.top_k - 1; i >= 0; --i) {
        scratch.uses[--scratch.start[args.ids.row<int32_t>(t)[i] + 1]] = t * desc_.top_k + i;
      }
    }
    for (int32_t e = 0; e < desc_.experts; ++e) scratch.start[e] = scratch.start[e + 1];
    scratch.start[desc_.experts] = args.tokens.total * desc_.top_k;
  }

  // Calls body(expert, uses, count) with up to kTokenTile uses of each chosen expert, in ascending order.
  template <class Body>
  void for_each_tile(const Scratch& scratch, const Body& body) const {
    for (int32_t e = 0; e < desc_.experts; ++e) {
      for (int64_t use = scratch.start[e]; use < scratch.start[e + 1]; use += kTokenTile) {
        body(static_cast<size_t>(e), scratch.uses + use, std::min<int64_t>(kTokenTile, scratch.start[e + 1] - use));
      }
    }
  }

  // Rows [begin, end) of h for every use.
  void hidden(const Scratch& scratch, int64_t begin, int64_t end) const {
    constexpr int64_t kPairs = kRowTile / 2;
    const int64_t stride = dot_padded(desc_.intermediate);
    for_each_tile(scratch, [&](size_t expert, const int32_t* uses, int64_t count) {
      const numeric::EncodedMatrix& gate = source_.matrices[3 * expert];
      const numeric::EncodedMatrix& up = source_.matrices[3 * expert + 1];
      const float gate_scale = portable::global_scale(gate), up_scale = portable::global_scale(up);
      const float* tokens[kTokenTile];
      for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.x + uses[u] / desc_.top_k * dot_padded(desc_.hidden);
      for (int64_t row = begin; row < end; row += kPairs) {
        const int64_t pairs = std::min(kPairs, end - row);
        portable::WeightRow rows[kRowTile];
        for (int64_t p = 0; p < pairs; ++p) rows[2 * p] = {&gate, row + p}, rows[2 * p + 1] = {&up, row + p};
        float dots[kRowTile * kTokenTile];
        portable::dot_tile({rows, static_cast<size_t>(2 * pairs)}, {tokens, static_cast<size_t>(count)}, desc_.hidden,
                           dots);
        for (int64_t u = 0; u < count; ++u) {
          for (int64_t p = 0; p < pairs; ++p) {
            const float value = cpu::fast_silu(dots[2 * p * kTokenTile + u] * gate_scale) *
                                (dots[(2 * p + 1) * kTokenTile + u] * up_scale);
            scratch.h[uses[u] * stride + row + p] =
                desc_.activation == DType::kBf16 ? cpu::round_through<cpu::Bf16>(value) : value;
          }
        }
      }
    });
    if (end != desc_.intermediate) return;
    const int64_t uses = scratch.start[desc_.experts];
    for (int64_t use = 0; use < uses; ++use)
      std::fill(scratch.h + use * stride + end, scratch.h + (use + 1) * stride, 0.0f);
  }

  // sums[t, n] = sum over the chosen experts, for n in [begin, end).
  void down(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < args.tokens.total; ++t)
      std::fill_n(scratch.sums + t * desc_.hidden + begin, end - begin, 0.0f);
    for_each_tile(scratch, [&](size_t expert, const int32_t* uses, int64_t count) {
      const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + 2];
      const float scale = portable::global_scale(matrix);
      const float* tokens[kTokenTile];
      for (int64_t u = 0; u < count; ++u) tokens[u] = scratch.h + uses[u] * dot_padded(desc_.intermediate);
      for (int64_t n = begin; n < end; n += kRowTile) {
        const int64_t count_n = std::min(kRowTile, end - n);
        portable::WeightRow rows[kRowTile];
        for (int64_t r = 0; r < count_n; ++r) rows[r] = {&matrix, n + r};
        float dots[kRowTile * kTokenTile];
        portable::dot_tile({rows, static_cast<size_t>(count_n)}, {tokens, static_cast<size_t>(count)},
                           desc_.intermediate, dots);
        for (int64_t u = 0; u < count; ++u) {
          const int64_t t = uses[u] / desc_.top_k;
          const float weight = args.weights.row<float>(t)[uses[u] % desc_.top_k];
          float* sums = scratch.sums + t * desc_.hidden + n;
          for (int64_t r = 0; r < count_n; ++r) sums[r] += weight * (dots[r * kTokenTile + u] * scale);
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

  ExpertsDesc desc_;
  const WeightSource& source_;
};

}  // namespace

const Impl<ExpertsOp> kExpertsCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order =
        [](const ExpertsDesc& desc) {
          return dot_products_exact(desc.format, desc.activation) ? order_id("experts dot16 exact")
                                                                  : order_id("experts dot16 multiply, add");
        },
    .layout = [](const ExpertsDesc&) { return &kFileLayout; },
    .can_run = [](const ExpertsDesc& desc, const DeviceCaps&) { return refuse_weight_only(desc); },
    .workspace_bytes = [](const ExpertsDesc& desc, const Bucket& bucket,
                          MakeContext&) { return ExpertsCpuPortable::workspace_bytes(desc, bucket.tokens); },
    .make = [](const ExpertsDesc& desc, const Bucket&, const ExpertsOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<ExpertsOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_experts(context.weights, weights.experts, desc));
      return PlanPtr<ExpertsOp>(std::make_unique<ExpertsCpuPortable>(desc, *source));
    },
};

}  // namespace assay::ops
