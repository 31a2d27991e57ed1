// What rms_norm is proven with.
//
// Bound, relative to y = x * rsqrt(mean(x^2) + eps) * w' [* act(z)]: the sum of squares has only positive terms, so its
// relative error is that of sum_error and of the squares themselves (u, none for bf16); the root halves it; rsqrt, 1 +
// w and the products are 2 + 1 + 2 roundings, 8 u with what approximate roots leave; a gate adds exp (4 u, and u |z|
// from the reduction of its argument), a sum, a quotient and a product: 8 u.
// Plus one ulp of y. A sum of squares beyond fp32 leaves 0 (rms_norm.h), or what is right. Where exp(-z) is beyond fp32
// (z < -88) the gate is below 1e-36: that much is let pass.
#include <algorithm>

#include "numeric/decode.h"
#include "ops/all_cases.h"

namespace assay::ops {
namespace {

struct Arrays {
  int x, y, z;
};

constexpr double kLargestFloat = 0x1.fffffep127;

void judge_chunk(const Bench& bench, const RmsNormDesc& desc, const std::vector<double>& weight, const Arrays& arrays,
                 int64_t row, int64_t t, int64_t first, Block& block, Comparison& comparison) {
  double squares = 0;
  for (int64_t i = 0; i < desc.width; ++i) {
    const double x = bench.initial(arrays.x, row, first + i);
    squares += x * x;
  }
  const bool gated = desc.kind == NormKind::kGated;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(desc.width) + desc.eps);
  for (int64_t i = 0; i < desc.width; ++i) {
    const double w = weight[static_cast<size_t>(i)];
    double y = bench.initial(arrays.x, row, first + i) * scale * (gated ? w : 1 + w);
    double vanishing = 0;
    double relative = (sum_error(desc.width, 1) + kUnit) / 2 + 8 * kUnit;
    if (gated) {
      const double z = bench.initial(arrays.z, t, first + i);
      if (z < -80) vanishing = 1e-33 * std::abs(y);
      y *= (desc.sigmoid_gate ? 1 : z) / (1 + std::exp(-z));
      relative += (8 + std::abs(z)) * kUnit;
    }
    // 1 + w loses up to u of 1 where w is near -1.
    const double cancelled = gated ? 0 : kUnit * std::abs(bench.initial(arrays.x, row, first + i) * scale);
    const double accumulated = relative * std::abs(y) + cancelled + vanishing;
    const double rounding = ulp(desc.activation, std::abs(y) + accumulated);
    const double got = bench.at(arrays.y, t, first + i);
    if (squares > kLargestFloat && got == 0) continue;
    comparison.within(Evidence::kSampled, "y", t, first + i, got, y, accumulated + rounding);
    block.add(got, y, accumulated, rounding);
  }
}

}  // namespace

std::vector<Case<RmsNormOp>> make_cases(const RmsNormDesc& desc, const RmsNormOp::Weights& weights,
                                        const CaseContext& context) {
  std::vector<Case<RmsNormOp>> cases;
  std::vector<double> weight(static_cast<size_t>(desc.width));
  numeric::decode_row(context.weights.source(weights.weight).matrices[0], 0, weight.data());
  const int64_t cols = desc.width * desc.groups;
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(400'000 / cols, 3, 100'000));
  std::vector<int32_t> counts = token_counts(context, context.bucket.tokens, most);
  // The last four: token 1 has a NaN; or infinity; or a row that is not gathered has a NaN; or token 1 has a value that
  // is finite and its square is not, which is no reason for a flag.
  const size_t usual = counts.size();
  constexpr int32_t kNotFinite = 4;
  if (kNotFinite <= context.bucket.tokens) counts.insert(counts.end(), 4, kNotFinite);
  for (int32_t tokens : counts) {
    CaseRandom random(context.seed + static_cast<uint64_t>(tokens));
    Case<RmsNormOp> made;
    const bool gated = desc.kind == NormKind::kGated, unusual = cases.size() >= usual;
    const size_t variant = unusual ? cases.size() - usual : 0;
    const bool overflow = unusual && variant == 3, not_finite = unusual && !overflow;
    const bool gather = !gated && (unusual ? variant == 2 : cases.size() % 3 == 1);
    const bool in_place = !gather && !unusual && cases.size() % 3 == 2;
    made.name = fmt::format("{} T={}{}",
                            not_finite ? "not finite"
                            : overflow ? "overflow"
                                       : "mixed",
                            tokens,
                            gather     ? " gather"
                            : in_place ? " in place"
                                       : "");
    if (not_finite && !gated && variant < 2) made.flags = Sentinel::kNonFiniteResidual;
    made.work = tokens * cols * 4;
    made.bucket = {tokens, tokens, tokens};
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    const int64_t rows = gather ? tokens + 5 : tokens;
    Arrays arrays{};
    arrays.x = bench.add("x", desc.activation, rows, cols, in_place ? Role::kInOut : Role::kInput, 64,
                         [&](int64_t t, int64_t i) {
                           if (!unusual || t != 1 || i != cols - 1) return mixed_input(random, t, i);
                           return overflow ? 0x1p100 : variant == 1 ? INFINITY : std::nan("");
                         });
    arrays.y = arrays.x;
    if (in_place) {
      for (int64_t t = 0; t < rows; ++t) bench.expect_written(arrays.x, t * bench.view(arrays.x).stride, cols);
    } else {
      arrays.y = bench.add("y", desc.activation, tokens, cols, Role::kOutput, 64);
    }
    made.args = {{0, tokens, nullptr}, bench.view(arrays.x), {}, bench.view(arrays.y), nullptr};
    if (gated) {
      arrays.z = bench.add("z", desc.activation, tokens, cols, Role::kInput, 64,
                           [&](int64_t t, int64_t i) { return 2 * mixed_input(random, t % 8 == 4 ? 0 : t, i); });
      made.args.z = bench.view(arrays.z);
    }
    std::vector<int32_t> from(static_cast<size_t>(tokens));
    for (size_t t = 0; t < from.size(); ++t) {
      from[t] = static_cast<int32_t>(gather ? random.below(rows) : t);
      if (gather && not_finite && from[t] == 1) from[t] = 0;
    }
    if (gather) made.args.gather = bench.pointer<const int32_t>(bench.add_array<int32_t>("gather", from));
    made.digest = !not_finite;  // NaNs have many encodings
    made.judge = [&bench, desc, weight, arrays, from, not_finite, variant](Comparison& comparison) {
      Block block;
      for (size_t t = 0; t < from.size(); ++t) {
        if (not_finite && from[t] == 1) {
          for (int64_t i = 0; variant == 0 && i < desc.width; ++i) {  // a NaN is in every output of its norm
            const int64_t col = (desc.groups - 1) * desc.width + i;
            comparison.equal(Evidence::kSampled, "y", static_cast<int64_t>(t), col,
                             bench.at(arrays.y, static_cast<int64_t>(t), col), std::nan(""));
          }
          continue;
        }
        for (int64_t group = 0; group < desc.groups; ++group) {
          judge_chunk(bench, desc, weight, arrays, from[t], static_cast<int64_t>(t), group * desc.width, block,
                      comparison);
        }
      }
      block.judge(comparison, "y", 0, 0);
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

RmsNormOp::Weights synthetic(const RmsNormDesc& desc, CaseWeights& weights, CaseRandom& random) {
  return {weights.add({{numeric::WeightFormat::kBf16, 1, desc.width}}, 0.5, random)};
}

}  // namespace assay::ops
