// What qk_norm_rope is proven with.
//
// Bound of a rotated value a cos - b sin, a and b normed: the norm is that of rms_norm's bound (e below), the products
// and the sum add 3 u, sine and cosine are within 4 u absolutely (their argument, the fp32 product of position and
// frequency, is part of the definition):
//   accumulated = (e + 3 u) (|a cos| + |b sin|) + 4 u (|a| + |b|) + u (|a / (1 + w_a)| + |b / (1 + w_b)|)   [the sum 1
//   + w] rounding    = ulp(out) of the activation dtype for q, of the cache's for k
// v is only converted: equal.
#include <algorithm>
#include <set>

#include "numeric/decode.h"
#include "ops/all_cases.h"
#include "ops/case_batch.h"

namespace assay::ops {
namespace {

struct Arrays {
  int qkv, q, k, v;
};

class Judge {
 public:
  Judge(const QkNormRopeDesc& desc, std::vector<double> q_norm, std::vector<double> k_norm)
      : desc_(desc), q_norm_(std::move(q_norm)), k_norm_(std::move(k_norm)) {}

  void token(const Bench& bench, const Arrays& arrays, const CaseBatch& batch, int64_t page_stride, int64_t t,
             Comparison& comparison) const {
    const int64_t dim = desc_.head_dim, q_width = dim * (desc_.output_gate ? 2 : 1);
    const int32_t position = batch.positions[static_cast<size_t>(t)];
    const std::vector<double> qkv = bench.initial_row(arrays.qkv, t);
    for (int32_t h = 0; h < desc_.heads; ++h) {
      head({qkv.data() + h * q_width, static_cast<size_t>(dim)}, q_norm_, position,
           [&](int64_t d, double value, double bound) {
             comparison.within(Evidence::kSampled, "q", t, h * dim + d, bench.at(arrays.q, t, h * dim + d), value,
                               bound + ulp(desc_.activation, std::abs(value) + bound));
           });
    }
    for (int32_t h = 0; h < desc_.kv_heads; ++h) {
      const double* k = qkv.data() + desc_.heads * q_width + h * dim;
      const int64_t at =
          batch.page(t, position) * page_stride + (int64_t{h} * kCasePageTokens + position % kCasePageTokens) * dim;
      head({k, static_cast<size_t>(dim)}, k_norm_, position, [&](int64_t d, double value, double bound) {
        comparison.within(Evidence::kSampled, "k cache", 0, at + d, bench.at(arrays.k, 0, at + d), value,
                          bound + ulp(desc_.cache, std::abs(value) + bound));
        comparison.equal(Evidence::kSampled, "v cache", 0, at + d, bench.at(arrays.v, 0, at + d),
                         round_to_dtype(desc_.cache, k[desc_.kv_heads * dim + d]));
      });
    }
  }

 private:
  template <class Use>
  void head(std::span<const double> x, const std::vector<double>& weight, int32_t position, const Use& use) const {
    const int64_t dim = desc_.head_dim, half = desc_.rotary_dim / 2;
    double squares = 0;
    for (double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + desc_.eps);
    const double e = (sum_error(dim, 1) + kUnit) / 2 + 8 * kUnit;
    const auto normed = [&](int64_t d) {
      const auto i = static_cast<size_t>(d);
      return x[i] * scale * (1 + weight[i]);
    };
    for (int64_t d = 0; d < dim; ++d) {
      const double own = std::abs(x[static_cast<size_t>(d)] * scale);
      if (d >= desc_.rotary_dim) {
        use(d, normed(d), e * std::abs(normed(d)) + kUnit * own);
        continue;
      }
      const int64_t i = d % half, other = d < half ? d + half : d - half;
      const auto frequency =
          static_cast<float>(std::pow(desc_.theta, -2.0 * static_cast<double>(i) / desc_.rotary_dim));
      const double angle = static_cast<float>(position) * frequency;
      const double a = normed(d) * std::cos(angle), b = (d < half ? -1 : 1) * normed(other) * std::sin(angle);
      const double bound = (e + 3 * kUnit) * (std::abs(a) + std::abs(b)) +
                           4 * kUnit * (std::abs(normed(d)) + std::abs(normed(other))) +
                           kUnit * (own + std::abs(x[static_cast<size_t>(other)] * scale));
      use(d, a + b, bound);
    }
  }

  QkNormRopeDesc desc_;
  std::vector<double> q_norm_, k_norm_;
};

std::vector<double> decoded(const WeightSource& source) {
  std::vector<double> values(static_cast<size_t>(source.matrices[0].cols));
  numeric::decode_row(source.matrices[0], 0, values.data());
  return values;
}

}  // namespace

std::vector<Case<QkNormRopeOp>> make_cases(const QkNormRopeDesc& desc, const QkNormRopeOp::Weights& weights,
                                           const CaseContext& context) {
  std::vector<Case<QkNormRopeOp>> cases;
  const auto judge = std::make_shared<Judge>(desc, decoded(context.weights.source(weights.q_norm)),
                                             decoded(context.weights.source(weights.k_norm)));
  for (const CaseSteps& steps : case_steps(context, true, {CaseValues::kNotFinite})) {
    CaseRandom random(context.seed + cases.size());
    const auto batch = std::make_shared<CaseBatch>(steps.sequences, random, 1);  // a prefix that nobody may write
    const int32_t tokens = batch->tokens();
    const int64_t dim = desc.head_dim;
    const int64_t cols = desc.heads * dim * (desc.output_gate ? 2 : 1) + 2 * desc.kv_heads * dim;
    Case<QkNormRopeOp> made;
    made.name = steps.name;
    made.work = tokens * cols * 8;
    made.bucket = batch->bucket();
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    Arrays arrays{};
    // A value of the first head of v, of the last of k, of q: only what is kept is flagged.
    const bool not_finite = steps.values == CaseValues::kNotFinite;
    const int64_t v = cols - desc.kv_heads * dim;
    const int64_t bad = (steps.variant == 0 ? v + dim : steps.variant == 1 ? v : dim) - 1;
    if (not_finite && steps.variant < 2) made.flags = Sentinel::kNonFiniteKv;
    arrays.qkv = bench.add("qkv", desc.activation, tokens, cols, Role::kInput, 64, [&](int64_t t, int64_t i) {
      const bool chosen = not_finite && t == tokens - 2 && i == bad;
      return chosen ? (steps.variant == 1 ? INFINITY : std::nan("")) : mixed_input(random, t, i);
    });
    arrays.q = bench.add("q", desc.activation, tokens, desc.heads * dim, Role::kOutput, 64);
    // One page a row; nothing but the tokens' own places may change.
    const int64_t page = desc.kv_heads * kCasePageTokens * dim;
    const auto poison = [](int64_t r, int64_t c) { return case_poison(r + c / 7); };
    arrays.k = bench.add("k cache", desc.cache, batch->page_count, page, Role::kInOut, 64, poison);
    arrays.v = bench.add("v cache", desc.cache, batch->page_count, page, Role::kInOut, 64, poison);
    const int64_t page_stride = bench.view(arrays.k).stride;
    for (int32_t t = 0; t < tokens; ++t) {
      const int32_t position = batch->positions[static_cast<size_t>(t)];
      for (int32_t h = 0; h < desc.kv_heads; ++h) {
        const int64_t at =
            batch->page(t, position) * page_stride + (int64_t{h} * kCasePageTokens + position % kCasePageTokens) * dim;
        bench.expect_written(arrays.k, at, dim);
        bench.expect_written(arrays.v, at, dim);
      }
    }
    made.args.batch = batch->place(bench, steps.decode);
    made.args.qkv = bench.view(arrays.qkv);
    made.args.q_out = bench.view(arrays.q);
    made.args.cache = {bench.view(arrays.k).data,
                       bench.view(arrays.v).data,
                       desc.cache,
                       kCasePageTokens,
                       desc.kv_heads,
                       desc.head_dim,
                       page_stride,
                       1,
                       1};
    made.digest = !not_finite;  // NaNs have many encodings
    made.judge = [&bench, judge, batch, arrays, page_stride, tokens, not_finite](Comparison& comparison) {
      const int32_t step = std::max(1, tokens / 16);
      for (int32_t t = tokens - 1; t >= 0; t -= step) {
        if (not_finite && t == tokens - 2) continue;
        judge->token(bench, arrays, *batch, page_stride, t, comparison);
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

QkNormRopeOp::Weights synthetic(const QkNormRopeDesc& desc, CaseWeights& weights, CaseRandom& random) {
  const CaseWeights::Shape shape{numeric::WeightFormat::kBf16, 1, desc.head_dim};
  return {weights.add({shape}, 0.5, random), weights.add({shape}, 0.5, random)};
}

}  // namespace assay::ops
