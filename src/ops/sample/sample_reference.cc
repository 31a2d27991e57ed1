// The definition of sample: a full sort, fp64. Workspace: one id, one fp64 weight and one adjusted logit a row and
// column.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/thread_pool.h"
#include "ops/host_launch.h"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

class Reference : public Plan<SampleOp::Args> {
 public:
  explicit Reference(const SampleDesc& desc) : desc_(desc) {}

  void enqueue(const SampleOp::Args& args, const Launch& launch) const override {
    Workspace workspace(launch.workspace);
    const View order = workspace.take(DType::kI32, args.rows, desc_.real_vocab);
    const View weights = workspace.take(DType::kF64, args.rows, desc_.real_vocab);
    const View adjusted = workspace.take(DType::kF32, args.rows, desc_.real_vocab);
    cpu::pool_of(launch.stream).parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        args.results[row] =
            run_row(args, row, {order.row<int32_t>(row), weights.row<double>(row), adjusted.row<float>(row)});
        if (args.results[row].numerical_error != 0) raise_flags(launch, Sentinel::kNonFiniteLogits);
      }
    });
  }

 private:
  // One element a real column each.
  struct Memory {
    int32_t* order;
    double* weights;
    float* adjusted;
  };

  SampleResult run_row(const SampleOp::Args& args, int64_t row, const Memory& memory) const {
    const float* logits = args.logits.row<float>(row);
    const SampleParams& params = args.params[row];
    SampleResult result = {};
    const float* end = logits + desc_.vocab;
    const auto bad = [](float x) { return std::isnan(x) || (std::isinf(x) && x > 0); };
    const auto finite = [](float x) { return std::isfinite(x); };
    if (std::any_of(logits, end, bad) || std::none_of(logits, logits + desc_.real_vocab, finite)) {
      result.numerical_error = 1;
      return result;
    }
    const double largest = *std::max_element(logits, end);
    double sum = 0;
    for (const float* logit = logits; logit < end; ++logit) sum += std::exp(*logit - largest);
    const double log_sum = largest + std::log(sum);

    CHECK(params.target < desc_.vocab, "target {} of {}", params.target, desc_.vocab);
    result.token = params.target >= 0 ? params.target : choose(args, row, memory);
    result.logprob = static_cast<float>(logits[result.token] - log_sum);
    result.top_count = std::clamp(params.top_logprobs, 0, std::min(kMaxTopLogprobs, desc_.real_vocab));
    sort_columns(logits, memory.order);
    for (int32_t i = 0; i < result.top_count; ++i) {
      result.top_ids[i] = memory.order[i];
      result.top_logprobs[i] = static_cast<float>(logits[memory.order[i]] - log_sum);
    }
    return result;
  }

  void sort_columns(const float* logits, int32_t* order) const {
    std::iota(order, order + desc_.real_vocab, 0);
    std::sort(order, order + desc_.real_vocab,
              [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  }

  int32_t choose(const SampleOp::Args& args, int64_t row, const Memory& memory) const {
    const SampleParams& params = args.params[row];
    std::copy_n(args.logits.row<float>(row), desc_.real_vocab, memory.adjusted);
    for (int32_t i = 0; i < params.adjustment_count; ++i) {
      const LogitAdjustment& adjustment = args.adjustments[params.first_adjustment + i];
      if (adjustment.token >= desc_.real_vocab) continue;
      float& logit = memory.adjusted[adjustment.token];
      logit = adjusted_logit(logit, adjustment);
    }
    sort_columns(memory.adjusted, memory.order);
    return pick(memory.adjusted, params, memory.order, memory.weights);
  }

  int32_t pick(const float* logits, const SampleParams& params, const int32_t* order, double* weights) const {
    if (params.temperature <= 0) return order[0];
    int32_t kept = desc_.real_vocab;
    for (int32_t i = 0; i < kept; ++i) {
      weights[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / params.temperature);
    }
    if (params.top_k > 0) kept = std::min(kept, params.top_k);
    if (params.top_p < 1) {
      const double wanted = params.top_p * std::accumulate(weights, weights + kept, 0.0);
      double sum = weights[0];
      int32_t count = 1;
      while (count < kept && sum < wanted) sum += weights[count++];
      kept = count;
    }
    if (params.min_p > 0) {
      while (kept > 1 && weights[kept - 1] < params.min_p) --kept;  // the largest weight is 1
    }
    const double target = sample_uniform(params.seed, params.counter) * std::accumulate(weights, weights + kept, 0.0);
    double sum = 0;
    for (int32_t i = 0; i < kept; ++i) {
      sum += weights[i];
      if (sum > target) return order[i];
    }
    while (kept > 1 && weights[kept - 1] == 0) --kept;  // u * sum rounded up to sum
    return order[kept - 1];
  }

  SampleDesc desc_;
};

size_t workspace_bytes(const SampleDesc& desc, const Bucket& bucket, MakeContext&) {
  Workspace counted;
  const int64_t rows = std::max(bucket.tokens, bucket.sequences);
  counted.take(DType::kI32, rows, desc.real_vocab);
  counted.take(DType::kF64, rows, desc.real_vocab);
  counted.take(DType::kF32, rows, desc.real_vocab);
  return counted.used();
}

}  // namespace

constinit const Impl<SampleOp> kSampleReference = {
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const SampleDesc&) { return OrderId::kNone; },
    .layout = [](const SampleDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_sample,
    .workspace_bytes = workspace_bytes,
    .make = [](const SampleDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<SampleOp::Args>>> {
      return std::unique_ptr<Plan<SampleOp::Args>>(new Reference(desc));
    }};

}  // namespace assay::ops
