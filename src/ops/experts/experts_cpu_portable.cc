// experts on any CPU. Tokens are grouped by expert, so that a weight row is decoded once for up to 32 of its tokens.
// Two parallel loops: over the I rows of gate and up, and over the `hidden` rows of down. A thread goes through all
// chosen experts for its rows, in ascending order: equal work for every thread, and one thread for one output element.
#include <algorithm>

#include "backend/cpu/exp.h"
#include "backend/cpu/thread_pool.h"
#include "ops/experts/expert_groups.h"
#include "ops/experts/experts_rows.h"
#include "ops/portable_dot.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cpu::F4;
using portable::kTokenTile;

constexpr int64_t kRowBlock = 16;  // rows whose dot products are on the stack at once, 2 KB for a tile of tokens

class ExpertsCpuPortable : public Plan<ExpertsOp::Args> {
 public:
  ExpertsCpuPortable(const ExpertsDesc& desc, const WeightSource& source)
      : desc_(desc), x_form_(x_form(desc)), h_form_(h_form(desc)), source_(source) {}

  static size_t workspace_bytes(const ExpertsDesc& desc, int64_t tokens) {
    Workspace counted;
    carve(desc, tokens, counted);
    return counted.used();
  }

  void enqueue(const ExpertsOp::Args& args, const Launch& launch) const override {
    const int64_t tokens = args.tokens.total;
    if (tokens == 0) return;
    CHECK(args.x.cols == desc_.hidden && args.y.cols == desc_.hidden && args.ids.cols == desc_.top_k, "experts {}",
          describe(desc_));
    Workspace workspace(launch.workspace);
    const Scratch scratch = carve(desc_, tokens, workspace);
    scratch.groups.fill(args.ids, tokens);
    x_form_.prepare(args.x, tokens, scratch.x);
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    const int64_t uses = tokens * desc_.top_k;
    pool.parallel_for(desc_.intermediate, portable::row_grain(uses * desc_.hidden * 2),
                      [&](int64_t begin, int64_t end) {
                        cpu::with_activation(desc_.activation, [&]<class T>() { hidden<T>(scratch, begin, end); });
                      });
    if (launch.taps != nullptr) show_hidden(scratch, launch);
    h_form_.prepare(scratch.hidden, uses, scratch.h);
    pool.parallel_for(desc_.hidden, portable::row_grain(uses * desc_.intermediate), [&](int64_t begin, int64_t end) {
      down(args, scratch, begin, end);
      cpu::with_activation(desc_.activation, [&]<class T>() { finish<T>(args, scratch, begin, end); });
    });
  }

 private:
  struct Scratch {
    ExpertGroups groups;
    std::byte* x;  // [T] prepared
    View hidden;   // [T * k, I], h in the activation dtype
    std::byte* h;  // [T * k] prepared
    View tapped;   // F32 [T * k, I]
    float* sums;   // [T, hidden]
  };

  static portable::Tokens x_form(const ExpertsDesc& desc) { return {desc.format, desc.activation, desc.hidden}; }
  static portable::Tokens h_form(const ExpertsDesc& desc) { return {desc.format, desc.activation, desc.intermediate}; }

  static Scratch carve(const ExpertsDesc& desc, int64_t tokens, Workspace& workspace) {
    const int64_t uses = tokens * desc.top_k;
    const auto take = [&](const portable::Tokens& form, int64_t count) {
      return static_cast<std::byte*>(workspace.take(DType::kU8, count, form.bytes()).data);
    };
    Scratch scratch;
    scratch.groups = ExpertGroups(desc.experts, desc.top_k, tokens, workspace);
    scratch.x = take(x_form(desc), tokens);
    scratch.hidden = workspace.take(desc.activation, uses, desc.intermediate);
    scratch.h = take(h_form(desc), uses);
    scratch.tapped = workspace.take(DType::kF32, uses, desc.intermediate);
    scratch.sums = static_cast<float*>(workspace.take(DType::kF32, tokens, desc.hidden).data);
    return scratch;
  }

  // Rows [begin, end) of h for every use.
  template <class T>
  void hidden(const Scratch& scratch, int64_t begin, int64_t end) const {
    scratch.groups.for_each_tile(kTokenTile, [&](size_t expert, const int32_t* uses, int64_t count) {
      const numeric::EncodedMatrix& gate = source_.matrices[3 * expert];
      const numeric::EncodedMatrix& up = source_.matrices[3 * expert + 1];
      const std::byte* x[kTokenTile];
      for (int64_t u = 0; u < count; ++u) x[u] = scratch.x + uses[u] / desc_.top_k * x_form_.bytes();
      const std::span tokens(x, static_cast<size_t>(count));
      for (int64_t row = begin; row < end; row += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, end - row);
        float gates[kTokenTile * kRowBlock], ups[kTokenTile * kRowBlock];
        portable::dot_rows(gate, x_form_, row, rows, tokens, gates, kRowBlock);
        portable::dot_rows(up, x_form_, row, rows, tokens, ups, kRowBlock);
        const auto multiply = [](F4 g, F4 u) { return cpu::fast_silu(g) * u; };
        for (int64_t u = 0; u < count; ++u) {
          cpu::map_lanes(rows, scratch.hidden.row<T>(uses[u]) + row, multiply, gates + u * kRowBlock,
                         ups + u * kRowBlock);
        }
      }
    });
  }

  void show_hidden(const Scratch& scratch, const Launch& launch) const {
    cpu::with_activation(desc_.activation, [&]<class T>() {
      for (int64_t use = 0; use < scratch.hidden.rows; ++use) {
        cpu::map_lanes(
            desc_.intermediate, scratch.tapped.row<float>(use), [](F4 value) { return value; },
            scratch.hidden.row<T>(use));
      }
    });
    launch.taps->record("experts.hidden", launch.layer, scratch.tapped);
  }

  // sums[t, n] = sum over the chosen experts, for n in [begin, end).
  void down(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < args.tokens.total; ++t)
      std::fill_n(scratch.sums + t * desc_.hidden + begin, end - begin, 0.0f);
    scratch.groups.for_each_tile(kTokenTile, [&](size_t expert, const int32_t* uses, int64_t count) {
      const numeric::EncodedMatrix& matrix = source_.matrices[3 * expert + 2];
      const std::byte* h[kTokenTile];
      for (int64_t u = 0; u < count; ++u) h[u] = scratch.h + uses[u] * h_form_.bytes();
      for (int64_t n = begin; n < end; n += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, end - n);
        float dots[kTokenTile * kRowBlock];
        portable::dot_rows(matrix, h_form_, n, rows, {h, static_cast<size_t>(count)}, dots, kRowBlock);
        for (int64_t u = 0; u < count; ++u) {
          const int64_t t = uses[u] / desc_.top_k;
          const float weight = args.weights.row<float>(t)[uses[u] % desc_.top_k];
          float* sums = scratch.sums + t * desc_.hidden + n;
          const auto add = [=](F4 sum, F4 dot) { return sum + weight * dot; };
          cpu::map_lanes(rows, sums, add, sums, dots + u * kRowBlock);
        }
      }
    });
  }

  template <class T>
  void finish(const ExpertsOp::Args& args, const Scratch& scratch, int64_t begin, int64_t end) const {
    for (int64_t t = 0; t < args.tokens.total; ++t) {
      float* sums = scratch.sums + t * desc_.hidden + begin;
      T* y = args.y.row<T>(t) + begin;
      if (args.shared) {
        const float scale = *args.shared_scale.row<float>(t);
        const auto add = [=](F4 sum, F4 shared) { return sum + scale * shared; };
        cpu::map_lanes(end - begin, sums, add, sums, args.shared.row<T>(t) + begin);
      }
      if (args.residual) {
        const auto add = [](F4 sum, F4 residual) { return residual + cpu::round_through<T>(sum); };
        cpu::map_lanes(end - begin, y, add, sums, args.residual.row<T>(t) + begin);
      } else {
        cpu::map_lanes(
            end - begin, y, [](F4 sum) { return sum; }, sums);
      }
    }
  }

  ExpertsDesc desc_;
  portable::Tokens x_form_, h_form_;
  const WeightSource& source_;
};

}  // namespace

const Impl<ExpertsOp> kExpertsCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order =
        [](const ExpertsDesc& desc) {
          return order_id("experts " + std::string(dot_order(desc.format, desc.activation)));
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
