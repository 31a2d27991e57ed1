// What router is proven with.
//
// Logits: as linear's outputs, one ulp of the activation dtype for round(). Which experts: a choice, and right rows may
// differ at a tie of rounded logits. So the row's own logits are taken: given them the k largest, ties to the lowest
// index, are determined, and the weights are their softmax within (16 + 2 |l - max|) u: two exponentials of arguments
// rounded when they are reduced, a sum of k terms, a quotient. shared_scale = sigmoid(round(z)): the slope s (1 - s)
// turns the bound of z into one of s; 8 u s for the sigmoid itself.
#include <algorithm>
#include <numeric>

#include "ops/all_cases.h"
#include "ops/case_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kCheckWork = 2'000'000;

struct Arrays {
  int x, ids, weights, logits, shared, forced;
};

struct Logit {
  double value, bound;
};

// Row e of the stack of gate and shared gate, for every checked token.
struct Expected {
  std::vector<int64_t> tokens;
  std::vector<std::vector<Logit>> logits;  // [checked token][experts + 1]
};

std::vector<numeric::EncodedMatrix> stacked(const RouterDesc& desc, const RouterOp::Weights& weights,
                                            const WeightProvider& provider) {
  std::vector<numeric::EncodedMatrix> matrices = provider.source(weights.gate).matrices;
  if (desc.shared_gate) matrices.push_back(provider.source(weights.shared_gate).matrices[0]);
  return matrices;
}

// terms: how many products of a logit are not zero.
Expected expect(const RouterDesc& desc, std::span<const numeric::EncodedMatrix> matrices, const Bench& bench, int x,
                int32_t tokens, int64_t terms) {
  Expected expected;
  const int64_t rows = desc.experts + (desc.shared_gate ? 1 : 0);
  const int64_t step = std::max<int64_t>(1, tokens * rows * desc.hidden / kCheckWork);
  std::vector<std::vector<double>> inputs, shifts;
  for (int64_t t = tokens - 1; t >= 0; t -= step) {
    expected.tokens.push_back(t);
    inputs.push_back(bench.initial_row(x, t));
    shifts.push_back(case_shifts(desc.format, desc.activation, inputs.back()));
  }
  expected.logits.resize(expected.tokens.size());
  CaseRows decoded(matrices, desc.hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const auto weights = decoded.row(row);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const CaseDot dot = case_dot(inputs[i], shifts[i], weights);
      const double value = dot.sum * decoded.scale(), magnitudes = dot.magnitudes * std::abs(decoded.scale());
      if (!std::isfinite(value)) {
        expected.logits[i].push_back({value, 0});
        continue;
      }
      const double shifted = dot.shifted * std::abs(decoded.scale());
      double accumulated = sum_error(terms, magnitudes + shifted) + shifted + kUnit * std::abs(value);
      if (desc.activation == DType::kF32) accumulated += kUnit * magnitudes;
      expected.logits[i].push_back({value, accumulated + ulp(desc.activation, std::abs(value) + accumulated)});
    }
  }
  return expected;
}

void judge_token(const RouterDesc& desc, const Bench& bench, const Arrays& arrays, int64_t t,
                 const std::vector<Logit>& logits, Evidence kind, Comparison& comparison) {
  std::vector<double> own(static_cast<size_t>(desc.experts));
  for (int32_t e = 0; e < desc.experts; ++e) {
    own[static_cast<size_t>(e)] = bench.at(arrays.logits, t, e);
    const Logit& logit = logits[static_cast<size_t>(e)];
    comparison.within(kind, "logits", t, e, own[static_cast<size_t>(e)], logit.value, logit.bound);
  }
  std::vector<int32_t> order(own.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int32_t e) {
    const double logit = own[static_cast<size_t>(e)];
    return std::isnan(logit) ? -INFINITY : logit;
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  if (arrays.forced >= 0) {
    for (int32_t i = 0; i < desc.top_k; ++i) {
      order[static_cast<size_t>(i)] = static_cast<int32_t>(bench.initial(arrays.forced, t, i));
    }
  }
  double largest = -INFINITY, sum = 0;
  for (int32_t i = 0; i < desc.top_k; ++i) {
    largest = std::max(largest, own[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }
  for (int32_t i = 0; i < desc.top_k; ++i) {
    sum += std::exp(own[static_cast<size_t>(order[static_cast<size_t>(i)])] - largest);
  }
  const bool undefined = std::any_of(own.begin(), own.end(), [](double l) { return std::isnan(l) || l == INFINITY; });
  for (int32_t i = 0; i < desc.top_k; ++i) {
    const int32_t id = order[static_cast<size_t>(i)];
    comparison.equal(Evidence::kSampled, "ids", t, i, bench.at(arrays.ids, t, i), id);
    if (undefined) {
      comparison.equal(Evidence::kSampled, "weights", t, i, bench.at(arrays.weights, t, i), std::nan(""));
      continue;
    }
    if (std::isinf(largest)) continue;  // of -infinity alone there is no softmax
    const double below = largest - own[static_cast<size_t>(id)], weight = std::exp(-below) / sum;
    comparison.within(Evidence::kSampled, "weights", t, i, bench.at(arrays.weights, t, i), weight,
                      (16 + 2 * below) * kUnit * weight + 1e-37);
  }
  if (!desc.shared_gate) return;
  const Logit& z = logits.back();
  const double s = 1 / (1 + std::exp(-z.value));
  if (!std::isfinite(z.value)) {
    return comparison.equal(Evidence::kSampled, "shared_scale", t, 0, bench.at(arrays.shared, t, 0), s);
  }
  // |z| tells how far sigmoid bends within the bound: its slope changes by a factor of at most e^bound.
  const double slope = s * (1 - s) * std::exp(std::min(z.bound, 1.0));
  comparison.within(Evidence::kSampled, "shared_scale", t, 0, bench.at(arrays.shared, t, 0), s,
                    std::min(1.0, slope * z.bound) + (8 + std::abs(z.value)) * kUnit * s + 1e-37);
}

// Inputs of which three are not zero, as those of linear's probes: little is left of one logit's sum.
std::vector<std::vector<double>> cancelling_inputs(const RouterDesc& desc,
                                                   std::span<const numeric::EncodedMatrix> matrices, int32_t count,
                                                   CaseRandom& random) {
  constexpr int64_t kDistances[] = {1, 16, 2, 32, 4, 64, 8};
  std::vector<std::vector<double>> inputs;
  CaseRows rows(matrices, desc.hidden);
  for (int32_t i = 0; i < count; ++i) {
    const int64_t distance = kDistances[static_cast<size_t>(i) % std::size(kDistances)];
    if (2 * distance >= desc.hidden) continue;
    const auto a = static_cast<size_t>(random.below(desc.hidden - 2 * distance)), b = a + static_cast<size_t>(distance),
               c = b + static_cast<size_t>(distance);
    const auto w = rows.row(random.below(desc.experts));
    if (w[a] == 0 || w[b] == 0 || w[c] == 0) continue;
    std::vector<double>& x = inputs.emplace_back(static_cast<size_t>(desc.hidden));
    x[a] = round_to_dtype(desc.activation, w[c]);
    x[b] = std::ldexp(1.0, std::ilogb(std::abs(w[a] * w[c] / w[b])) - 12);
    x[c] = -round_to_dtype(desc.activation, w[a]);
  }
  return inputs;
}

}  // namespace

std::vector<Case<RouterOp>> make_cases(const RouterDesc& desc, const RouterOp::Weights& weights,
                                       const CaseContext& context) {
  std::vector<Case<RouterOp>> cases;
  const auto matrices = stacked(desc, weights, context.weights);
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(20'000'000 / (desc.experts * desc.hidden), 3, 100'000));
  // The last cases: token 1 has one infinite input, 2 has two, so that logits are infinite of either sign and NaN, and
  // 3 has a NaN; and probes of the accumulator.
  std::vector<int32_t> counts = token_counts(context, context.bucket.tokens, most);
  constexpr int32_t kNotFinite = 5;
  const bool unusual = context.effort != Effort::kWeights && kNotFinite <= context.bucket.tokens;
  const size_t usual = counts.size();
  CaseRandom probing(context.seed + 11);
  std::vector<std::vector<double>> probes;
  if (unusual) {
    counts.push_back(kNotFinite);
    probes = cancelling_inputs(desc, matrices, std::min(14, context.bucket.tokens), probing);
    if (!probes.empty()) counts.push_back(static_cast<int32_t>(probes.size()));
  }
  for (int32_t tokens : counts) {
    CaseRandom random(context.seed + static_cast<uint64_t>(tokens));
    const bool not_finite = cases.size() == usual, cancelling = cases.size() > usual,
               forced = cases.size() < usual && cases.size() % 3 == 1;
    const auto bad = [&](int64_t t, int64_t k) {
      if (!not_finite || t < 1 || t > 3) return 0.0;
      const bool first = k == desc.hidden / 2, second = t == 2 && k == 0;
      return !first && !second ? 0.0 : t == 3 ? std::nan("") : INFINITY;
    };
    Case<RouterOp> made;
    made.name = fmt::format("{} T={}{}",
                            not_finite   ? "not finite"
                            : cancelling ? "accumulator"
                                         : "mixed",
                            tokens, forced ? " forced" : "");
    made.work = tokens * desc.experts * desc.hidden;
    made.bucket = {tokens, tokens, tokens};
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    Arrays arrays{-1, -1, -1, -1, -1, -1};
    arrays.x = bench.add("x", desc.activation, tokens, desc.hidden, Role::kInput, 64, [&](int64_t t, int64_t k) {
      if (cancelling) return probes[static_cast<size_t>(t)][static_cast<size_t>(k)];
      const auto* known = activation_input(context, t, desc.hidden);
      if (const double value = bad(t, k); value != 0) return value;
      return known == nullptr ? (t % 8 == 4 ? 0x1p-12 : 1) * mixed_input(random, t, k)
                              : (*known)[static_cast<size_t>(k)];
    });
    arrays.ids = bench.add("ids", DType::kI32, tokens, desc.top_k, Role::kOutput, 0);
    arrays.weights = bench.add("weights", DType::kF32, tokens, desc.top_k, Role::kOutput, 0);
    arrays.logits = bench.add("logits", DType::kF32, tokens, desc.experts, Role::kOutput, 0);
    made.args.tokens = {decode_tokens(tokens, cases.size(), context.bucket), tokens};
    made.args.x = bench.view(arrays.x);
    made.args.ids = bench.view(arrays.ids);
    made.args.weights = bench.view(arrays.weights);
    made.args.logits = bench.view(arrays.logits);
    if (desc.shared_gate) {
      arrays.shared = bench.add("shared_scale", DType::kF32, tokens, 1, Role::kOutput, 0);
      made.args.shared_scale = bench.view(arrays.shared);
    }
    if (forced) {  // top_k different experts, neither sorted nor the best
      arrays.forced = bench.add(
          "forced_ids", DType::kI32, tokens, desc.top_k, Role::kInput, 0,
          [&](int64_t t, int64_t i) { return static_cast<double>((7 * t + i + desc.experts / 2) % desc.experts); });
      made.args.forced_ids = bench.view(arrays.forced);
    }
    auto expected =
        std::make_shared<Expected>(expect(desc, matrices, bench, arrays.x, tokens, cancelling ? 3 : desc.hidden));
    made.digest = !not_finite;  // NaNs have many encodings
    const Evidence kind = cancelling ? Evidence::kAccumulator : Evidence::kSampled;
    made.judge = [&bench, desc, arrays, expected, kind](Comparison& comparison) {
      for (size_t i = 0; i < expected->tokens.size(); ++i) {
        judge_token(desc, bench, arrays, expected->tokens[i], expected->logits[i], kind, comparison);
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

RouterOp::Weights synthetic(const RouterDesc& desc, CaseWeights& weights, CaseRandom& random) {
  const double magnitude = 2 / std::sqrt(static_cast<double>(desc.hidden));
  RouterOp::Weights ids{weights.add({{desc.format, desc.experts, desc.hidden}}, magnitude, random), WeightId::kNone};
  if (desc.shared_gate) ids.shared_gate = weights.add({{desc.format, 1, desc.hidden}}, magnitude, random);
  return ids;
}

}  // namespace assay::ops
