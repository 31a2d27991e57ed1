// What sample is proven with.
//
// Log-probability: (|logit| + 2 |lse| + 2) u + sum_error(V, 1) and one ulp; exponentials of l - max that matter have
// arguments above -40, so their relative error is at most (8 + 2 * 40) u, which the sum inherits.
// Token: greedy, ties, target and the alternatives are determined. A drawn token is a choice, and right rows may differ
// where u falls within rounding of a boundary: it is admissible if it lies in a kept set that rounding allows, and
// u * total in its interval widened by t = sum_error(V, 1) + 88 u of the total.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/all_cases.h"
#include "ops/sample/sample_random.h"

namespace assay::ops {
namespace {

struct Row {
  std::vector<double> logits;
  SampleParams params;
  std::vector<LogitAdjustment> adjustments;
  // Of a row that is not bad: what is drawn from, and the real ids by either, the largest first.
  std::vector<double> adjusted;
  std::vector<int32_t> order, adjusted_order;
};

// Token `got` given weights sorted by rank. True when some admissible cut and rounding give it.
bool admissible(const std::vector<double>& weights, const SampleParams& params, size_t rank, double tolerance) {
  size_t most = weights.size();
  if (params.top_k > 0) most = std::min(most, static_cast<size_t>(params.top_k));
  std::vector<double> sums{0};
  for (size_t i = 0; i < most; ++i) sums.push_back(sums.back() + weights[i]);
  size_t low = most, high = most;
  if (params.top_p < 1) {
    const double wanted = static_cast<double>(params.top_p) * sums[most], slack = tolerance * sums[most];
    low = high = 1;
    while (low < most && sums[low] < wanted - slack) ++low;
    while (high < most && sums[high] < wanted + slack) ++high;
  }
  if (params.min_p > 0) {
    const auto kept = [&](double floor) {
      size_t count = 1;
      while (count < most && weights[count] >= floor) ++count;
      return count;
    };
    low = std::min(low, kept(params.min_p * (1 + tolerance)));
    high = std::min(high, kept(params.min_p * (1 - tolerance)));
  }
  const double u = sample_uniform(params.seed, params.counter);
  for (size_t count = std::max<size_t>(low, 1); count <= high; ++count) {
    if (rank >= count) continue;
    const double target = u * sums[count], slack = tolerance * sums[count];
    if (target >= sums[rank] - slack && target <= sums[rank + 1] + slack) return true;
  }
  return false;
}

bool is_bad(const SampleDesc& desc, const Row& row) {
  const auto& logits = row.logits;
  return std::any_of(logits.begin(), logits.end(), [](double l) { return std::isnan(l) || l == INFINITY; }) ||
         std::none_of(logits.begin(), logits.begin() + desc.real_vocab, [](double l) { return std::isfinite(l); });
}

void judge_row(const SampleDesc& desc, const Row& row, const SampleResult& result, int64_t index,
               Comparison& comparison) {
  const auto equal = [&](const char* what, int64_t col, double got, double expected) {
    comparison.equal(Evidence::kSampled, what, index, col, got, expected);
  };
  const std::vector<double>& logits = row.logits;
  const bool bad = is_bad(desc, row);
  equal("numerical_error", 0, result.numerical_error != 0, bad);
  if (bad) {
    equal("token of a bad row", 0, result.token, -1);
    return;
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - largest);
  const double lse = largest + std::log(sum);
  const auto logprob = [&](const char* what, int64_t col, double got, int32_t id) {
    const double logit = logits[static_cast<size_t>(id)];
    if (std::isinf(logit)) return equal(what, col, got, logit);
    comparison.within(Evidence::kSampled, what, index, col, got, logit - lse,
                      (std::abs(logit) + 2 * std::abs(lse) + 2 + 88) * kUnit + sum_error(desc.vocab, 1) +
                          ulp(DType::kF32, logit - lse));
  };
  const int32_t wanted = std::clamp(row.params.top_logprobs, 0, std::min(kMaxTopLogprobs, desc.real_vocab));
  equal("top_count", 0, result.top_count, wanted);
  for (int32_t i = 0; i < wanted && result.top_count == wanted; ++i) {
    equal("top_ids", i, result.top_ids[i], row.order[static_cast<size_t>(i)]);
    logprob("top_logprobs", i, result.top_logprobs[i], row.order[static_cast<size_t>(i)]);
  }
  if (result.token < 0 || result.token >= desc.vocab) {
    comparison.fail(Evidence::kSampled, fmt::format("row {}: token {}", index, result.token));
    return;
  }
  logprob("logprob", 0, result.logprob, result.token);
  if (row.params.target >= 0) return equal("target", 0, result.token, row.params.target);
  const std::vector<int32_t>& order = row.adjusted_order;
  if (row.params.temperature <= 0) return equal("greedy token", 0, result.token, order[0]);
  std::vector<double> weights;
  for (int32_t id : order) {
    const double below = row.adjusted[static_cast<size_t>(id)] - row.adjusted[static_cast<size_t>(order[0])];
    weights.push_back(std::exp(below / row.params.temperature));
  }
  const auto rank = static_cast<size_t>(std::find(order.begin(), order.end(), result.token) - order.begin());
  if (rank == order.size() || !admissible(weights, row.params, rank, sum_error(desc.vocab, 1) + 88 * kUnit)) {
    comparison.fail(Evidence::kSampled,
                    fmt::format("row {}: token {} is not what this seed draws", index, result.token));
  }
}

std::vector<int32_t> by_size(const SampleDesc& desc, const std::vector<double>& logits) {
  std::vector<int32_t> order(static_cast<size_t>(desc.real_vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return order;
}

void add_orders(const SampleDesc& desc, Row& row) {
  if (is_bad(desc, row)) return;
  row.order = by_size(desc, row.logits);
  row.adjusted = row.logits;
  for (const LogitAdjustment& one : row.adjustments) {
    double& logit = row.adjusted[static_cast<size_t>(one.token)];
    logit = adjusted_logit(static_cast<float>(logit), one);
  }
  row.adjusted_order = row.adjustments.empty() ? row.order : by_size(desc, row.adjusted);
}

// The most likely token banned; unless that is all, others favoured, and some of every kind.
void add_adjustments(const SampleDesc& desc, Row& row, bool one_alone, CaseRandom& random) {
  const auto likely = std::max_element(row.logits.begin(), row.logits.begin() + desc.real_vocab) - row.logits.begin();
  row.adjustments.push_back({static_cast<int32_t>(likely), 1, -kBannedLogit});
  if (one_alone) return;
  const float scales[] = {1, 1.3f, 0.7f}, adds[] = {2.5f, -1.25f, 0, 6};
  for (int32_t token = 0; token < desc.real_vocab;
       token += 1 + static_cast<int32_t>(random.below(desc.real_vocab / 8 + 1))) {
    if (token == likely) continue;
    row.adjustments.push_back({token, scales[random.below(3)], adds[random.below(4)]});
  }
  if (desc.vocab > desc.real_vocab) row.adjustments.push_back({desc.vocab - 1, 1, 50});  // does nothing
}

// Rows of every kind, by index. Of the hot ones much of the probability is far below the largest logit.
Row make_row(const SampleDesc& desc, int32_t index, CaseRandom& random) {
  Row row;
  const bool hot = index % 16 == 3 || index % 32 == 17;
  const double spread = hot ? 30 : index % 3 == 0 ? 0.5 : 3;
  for (int32_t i = 0; i < desc.vocab; ++i) {
    double logit = spread * random.normal();
    if (index % 5 == 1) logit = std::round(2 * logit) / 2;  // ties
    if (i >= desc.real_vocab) logit += 6;                   // padding rows are likely, and must not be drawn
    row.logits.push_back(round_to_dtype(DType::kF32, logit));
  }
  SampleParams& params = row.params;
  params.seed = random.next();
  params.counter = static_cast<uint64_t>(index);
  params.top_logprobs = index % 16 == 4 ? -1 : index % 4 == 2 ? kMaxTopLogprobs : index % 4;
  switch (index % 8) {
    case 0:
      break;  // greedy
    case 1:
      params.temperature = 1;
      break;
    case 2:
      params.temperature = 0.7f, params.top_k = 20;
      break;
    case 3:
      params.temperature = 1.5f, params.top_p = 0.9f;
      break;
    case 4:
      params.temperature = 1, params.min_p = index % 16 == 4 ? 0.05f : 0.95f;  // some, or hardly any but the first
      break;
    case 5:
      params.temperature = 0.8f, params.top_k = 50, params.top_p = 0.95f, params.min_p = 0.01f;
      break;
    case 6:
      params.target = index % 16 == 6 ? static_cast<int32_t>(random.below(desc.real_vocab)) : 0;
      break;
    case 7:
      params.temperature = 1, params.top_k = index % 16 == 7 ? 1 : 2;
      break;
  }
  if (hot) params.temperature = 20;
  const auto somewhere = static_cast<size_t>(random.below(desc.real_vocab));
  if (index % 16 == 9) row.logits[somewhere] = std::nan("");
  if (index % 16 == 10) row.logits[somewhere] = INFINITY;
  if (index % 16 == 11) std::fill(row.logits.begin(), row.logits.end(), -INFINITY);
  if (index % 16 == 12) {
    for (size_t i = 0; i < row.logits.size(); i += 3) row.logits[i] = -INFINITY;
  }
  if (index % 3 == 1) add_adjustments(desc, row, index % 48 == 7, random);
  add_orders(desc, row);
  return row;
}

}  // namespace

std::vector<Case<SampleOp>> make_cases(const SampleDesc& desc, const NoWeights&, const CaseContext& context) {
  std::vector<Case<SampleOp>> cases;
  // Results say how many rows a bucket may ask for.
  const int32_t limit = std::max(context.bucket.tokens, context.bucket.outputs);
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(150'000 / desc.vocab, 3, 4096));
  for (int32_t rows : token_counts(context, limit, most)) {
    CaseRandom random(context.seed + static_cast<uint64_t>(rows));
    auto made_rows = std::make_shared<std::vector<Row>>();
    std::vector<SampleParams> params;
    std::vector<LogitAdjustment> adjustments;
    bool bad = false;
    // Where the vocabulary allows few rows, they are of kinds that differ most.
    constexpr int32_t kFew[] = {5, 1, 12, 3, 9, 4};
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t kind = rows <= 3 ? kFew[rows * (rows - 1) / 2 + r] : r;
      Row& row = made_rows->emplace_back(make_row(desc, kind, random));
      row.params.first_adjustment = static_cast<int32_t>(adjustments.size());
      row.params.adjustment_count = static_cast<int32_t>(row.adjustments.size());
      adjustments.insert(adjustments.end(), row.adjustments.begin(), row.adjustments.end());
      params.push_back(row.params);
      bad = bad || is_bad(desc, row);
    }
    if (adjustments.empty()) adjustments.emplace_back();  // arrays are never empty
    Case<SampleOp> made;
    made.name = fmt::format("R={}", rows);
    if (bad) made.flags = Sentinel::kNonFiniteLogits;
    made.work = int64_t{rows} * desc.vocab * 8;
    made.bucket = {rows, rows, rows};
    made.bench = std::make_unique<Bench>(context.device);
    Bench& bench = *made.bench;
    const int logits = bench.add("logits", DType::kF32, rows, desc.vocab, Role::kInput, 0, [&](int64_t r, int64_t c) {
      return (*made_rows)[static_cast<size_t>(r)].logits[static_cast<size_t>(c)];
    });
    const int param_array = bench.add_array<SampleParams>("params", params);
    const int adjustment_array = bench.add_array<LogitAdjustment>("adjustments", adjustments);
    const std::vector<std::byte> blank(static_cast<size_t>(rows) * sizeof(SampleResult));
    const int results = bench.add_bytes("results", blank, Role::kOutput);
    made.args = {rows, bench.view(logits), bench.pointer<const SampleParams>(param_array),
                 bench.pointer<SampleResult>(results), bench.pointer<const LogitAdjustment>(adjustment_array)};
    made.digest = false;  // alternatives beyond top_count are nobody's
    made.judge = [&bench, desc, made_rows, results](Comparison& comparison) {
      const ConstBytes bytes = bench.bytes(results);
      for (size_t r = 0; r < made_rows->size(); ++r) {
        const auto result = load_unaligned<SampleResult>(bytes.data() + r * sizeof(SampleResult));
        judge_row(desc, (*made_rows)[r], result, static_cast<int64_t>(r), comparison);
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace assay::ops
