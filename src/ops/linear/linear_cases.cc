// What linear is proven with.
//
// Bound of y = round(s * dot(x, w)), s the matrix' global scale:
//   accumulated = sum_error(K, s (sum|x w| + sum d|w|)) + s sum d|w| + u |y|      the sum, and one product with s
//                 + u s sum|x w| with fp32 activations         bf16 times bf16, f16 or an NVFP4 product is exact in
//                 fp32
//   rounding    = ulp(y)                                       half of it made by a right row
// d: g / 2 of x's block, by which "fixed blocks" (dot_order.h) move an x that is small beside its neighbours; for NVFP4
// with bf16 activations, zero elsewhere. With u = 2^-24, d is at most 4 u times the block's largest |x|. Roundings of
// that order: each block's sum once, its product once, K / 256 additions in a lane, four to fold: within sum_error.
// With a residual the inner round() is a declared rounding: + ulp(|residual + y| + accumulated + rounding). Where
// residual and y cancel, the outer ulp is that of what the inner rounding leaves. The accumulator's probe has three
// terms that are not zero, so its sum is bounded as one of three: an accumulator that keeps 14 bits passes where
// thousands of random terms are summed, and not there.
#include <algorithm>
#include <limits>

#include "numeric/decode.h"
#include "ops/all_cases.h"
#include "ops/case_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kCheckWork = 3'000'000;      // multiply-adds in fp64 for one case
constexpr int64_t kRunWork = 15'000'000;       // of a row, for one case
constexpr int64_t kCrowdWork = 4'000'000'000;  // of a case in which a large matrix has more tokens
constexpr int64_t kProjected = 64'000'000;     // largest matrix whose every weight enters a projection

enum class Residual { kNone, kApart, kInPlace };

struct Setup {
  LinearDesc desc;
  const WeightSource* source;
  int32_t tokens;
  int32_t decode;  // the first so many are decode tokens
  Residual residual;
  bool not_finite = false;
};

struct Arrays {
  int x, y, residual;
};

Case<LinearOp> place(const Setup& setup, const CaseContext& context, const Bench::Value& input,
                     bool contiguous = false) {
  Case<LinearOp> made;
  const LinearDesc& desc = setup.desc;
  made.work = setup.tokens * desc.n * desc.k;
  made.bucket = {setup.tokens, setup.tokens, setup.tokens};
  made.bench = std::make_unique<Bench>(context.device, contiguous);
  Bench& bench = *made.bench;
  // Two more rows than tokens: padding that must not matter.
  const int x = bench.add(
      "x", desc.activation, setup.tokens + 2, desc.k, Role::kInput, kTile,
      [&](int64_t t, int64_t k) { return t < setup.tokens ? input(t, k) : std::numeric_limits<double>::quiet_NaN(); });
  CaseRandom random(context.seed + 77);
  const auto residual = [&](int64_t t, int64_t) { return random.normal() * (t % 8 == 4 ? 1e4 : 1); };
  const bool in_place = setup.residual == Residual::kInPlace;
  const int y = bench.add("y", desc.output, setup.tokens, desc.n, in_place ? Role::kInOut : Role::kOutput, kTile,
                          in_place ? Bench::Value(residual) : Bench::Value());
  made.args.tokens = {setup.decode, setup.tokens};
  made.args.x = bench.view(x).slice(0, setup.tokens);
  made.args.y = bench.view(y);
  if (in_place) {
    for (int64_t t = 0; t < setup.tokens; ++t) bench.expect_written(y, t * bench.view(y).stride, desc.n);
    made.args.residual = bench.view(y);
  }
  if (setup.residual == Residual::kApart) {
    made.args.residual =
        bench.view(bench.add("residual", desc.output, setup.tokens, desc.n, Role::kInput, kTile, residual));
  }
  return made;
}

constexpr Arrays kArrays{0, 1, 2};

// Of the case with what is not finite: token 1 has one infinite input, 2 has two, so that outputs are infinite of
// either sign and NaN, and 3 has a NaN. The two are of different blocks (where there is one alone, token 2 has one
// too): fixed blocks may make an infinity of two that cancel. Tokens 0 and 4 have none; with fixed blocks token 0 is so
// small that the largest value of many a block is just below the exponent of the least grid (fixed_grid).
constexpr int32_t kNotFiniteTokens = 5;
double not_finite_input(const LinearDesc& desc, int64_t t, int64_t k, double usual) {
  const bool fixed = dot_fixed(desc.format, desc.activation);
  if (t == 0 && fixed) return 0x1p-108 * usual;
  const bool first = k == desc.k / 2, second = t == 2 && k == 0 && (!fixed || desc.k / 2 >= kDotLanes);
  if (t < 1 || t > 3 || !(first || second)) return usual;
  return t == 3 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
}

// Outputs, computed in fp64: at least 256 and some of every tile of 64, of all tokens or as many as the work allows.
void add_sampled(const Setup& setup, const CaseContext& context, std::vector<Case<LinearOp>>& cases) {
  CaseRandom random(context.seed + static_cast<uint64_t>(setup.tokens));
  Case<LinearOp> made = place(
      setup, context,
      [&](int64_t t, int64_t k) {
        const auto* known = activation_input(context, t, setup.desc.k);
        const double usual = known == nullptr ? mixed_input(random, t, k) : (*known)[static_cast<size_t>(k)];
        return setup.not_finite ? not_finite_input(setup.desc, t, k, usual) : usual;
      },
      cases.size() % 2 == 0);
  made.digest = !setup.not_finite;  // NaNs have many encodings
  made.name = fmt::format("{} T={} decode={}{}", setup.not_finite ? "not finite" : "mixed", setup.tokens, setup.decode,
                          setup.residual == Residual::kNone    ? ""
                          : setup.residual == Residual::kApart ? " residual"
                                                               : " in place");
  const LinearDesc desc = setup.desc;
  struct Expected {
    int64_t t, n;
    double dot, accumulated, rounding;
  };
  auto expected = std::make_shared<std::vector<Expected>>();
  const int64_t tiles = (desc.n + kTile - 1) / kTile;
  const int64_t per_tile = setup.tokens >= 33 ? 8 * tiles : 0;
  const auto columns = sampled_columns(desc.n, std::max<int64_t>({256 / setup.tokens, per_tile, 16}), random);
  const int64_t token_work = static_cast<int64_t>(columns.size()) * desc.k;
  const int64_t step = std::max<int64_t>(1, setup.tokens * token_work / kCheckWork);
  CaseRows rows(setup.source->matrices, desc.k);
  std::vector<std::vector<double>> x(static_cast<size_t>(setup.tokens)), shifts(x.size());
  for (int64_t t = setup.tokens - 1; t >= 0; t -= step) {
    const auto token = static_cast<size_t>(t);
    x[token] = made.bench->initial_row(kArrays.x, t);
    shifts[token] = case_shifts(desc.format, desc.activation, x[token]);
  }
  for (int64_t n : columns) {
    const auto weights = rows.row(n);
    const double scale = rows.scale();
    for (int64_t t = setup.tokens - 1; t >= 0; t -= step) {
      const auto token = static_cast<size_t>(t);
      const CaseDot dot = case_dot(x[token], shifts[token], weights);
      const double sum = dot.sum * scale, magnitudes = dot.magnitudes * std::abs(scale);
      const double shifted = dot.shifted * std::abs(scale);
      if (!std::isfinite(sum)) {
        expected->push_back({t, n, sum, 0, 0});
        continue;
      }
      double accumulated = sum_error(desc.k, magnitudes + shifted) + shifted + kUnit * std::abs(sum);
      if (desc.activation == DType::kF32) accumulated += kUnit * magnitudes;
      expected->push_back({t, n, sum, accumulated, ulp(desc.output, std::abs(sum) + accumulated)});
    }
  }
  const bool residual = setup.residual != Residual::kNone;
  const int residual_array = setup.residual == Residual::kApart ? kArrays.residual : kArrays.y;
  made.judge = [bench = made.bench.get(), expected, desc, residual, residual_array](Comparison& comparison) {
    Block block;
    for (size_t i = 0; i < expected->size(); ++i) {
      const Expected& e = (*expected)[i];
      const double added = residual ? bench->initial(residual_array, e.t, e.n) : 0;
      const double value = e.dot + added, got = bench->at(kArrays.y, e.t, e.n);
      const double rounding =
          e.rounding + (residual ? ulp(desc.output, std::abs(value) + e.accumulated + e.rounding) : 0);
      comparison.within(Evidence::kSampled, "y", e.t, e.n, got, value, e.accumulated + rounding);
      if (!residual && std::isfinite(e.dot)) block.add(got, e.dot, e.accumulated, rounding);
      const bool last = i + 1 == expected->size() || (*expected)[i + 1].n / kTile != e.n / kTile;
      if (!last) continue;
      block.judge(comparison, "y", 0, e.n / kTile * kTile);
      block = {};
    }
  };
  cases.push_back(std::move(made));
}

// One-hot tokens, one for each block of 16 inputs (all inputs with kFull, 64 a case): column k of W, bit for bit.
void add_identity(const LinearDesc& desc, const WeightSource& source, const CaseContext& context,
                  std::vector<Case<LinearOp>>& cases) {
  const bool all = context.effort == Effort::kFull;
  const int64_t step = all ? 1 : numeric::kNvfp4Block;
  std::vector<int64_t> columns;
  for (int64_t k = 0; k < desc.k; k += step) {
    const int64_t within = all ? 0 : static_cast<int64_t>((context.seed + static_cast<uint64_t>(k / step) * 5) % 16);
    columns.push_back(std::min(k + within, desc.k - 1));
  }
  const int64_t fitting = std::clamp<int64_t>(2 * kRunWork / (desc.n * desc.k), 1, 64);
  const auto most = std::min<int64_t>(fitting, context.bucket.tokens);
  const size_t limit = all ? columns.size() : static_cast<size_t>(most);
  if (columns.size() > limit) {  // as many as fit, spread evenly
    std::vector<int64_t> kept;
    for (size_t i = 0; i < limit; ++i) kept.push_back(columns[i * columns.size() / limit]);
    columns = std::move(kept);
  }
  for (size_t first = 0; first < columns.size(); first += static_cast<size_t>(most)) {
    const size_t count = std::min(columns.size() - first, static_cast<size_t>(most));
    const std::vector<int64_t> chosen(columns.begin() + static_cast<std::ptrdiff_t>(first),
                                      columns.begin() + static_cast<std::ptrdiff_t>(first + count));
    const auto tokens = static_cast<int32_t>(count);
    const Setup setup{desc, &source, tokens, tokens / 2, Residual::kNone};
    Case<LinearOp> made =
        place(setup, context, [&](int64_t t, int64_t k) { return k == chosen[static_cast<size_t>(t)] ? 1.0 : 0.0; });
    made.name = fmt::format("one-hot {}..", chosen.front());
    // W[n, k] of the chosen columns in fp32, the canonical value.
    auto expected = std::make_shared<std::vector<double>>();
    std::vector<float> values(static_cast<size_t>(desc.k));
    for (const numeric::EncodedMatrix& matrix : source.matrices) {
      for (int64_t row = 0; row < matrix.rows; ++row) {
        numeric::decode_row(matrix, row, values.data());
        for (int64_t k : chosen) {
          expected->push_back(round_to_dtype(desc.output, values[static_cast<size_t>(k)]));
        }
      }
    }
    made.judge = [bench = made.bench.get(), expected, chosen, n_count = desc.n](Comparison& comparison) {
      size_t i = 0;
      for (int64_t n = 0; n < n_count; ++n) {
        for (size_t t = 0; t < chosen.size(); ++t, ++i) {
          const double got = bench->at(kArrays.y, static_cast<int64_t>(t), n);
          if (got != (*expected)[i]) comparison.equal(Evidence::kIdentity, "W^T", chosen[t], n, got, (*expected)[i]);
        }
      }
      comparison.equal(Evidence::kIdentity, "W^T", chosen[0], 0, bench->at(kArrays.y, 0, 0), (*expected)[0]);
    };
    cases.push_back(std::move(made));
  }
}

// All outputs at once: per tile of 64 outputs, sum_n r_n y[t, n] against x . (sum_n r_n W[n]), r = +-1. The roundings
// of the outputs are independent: 6 sqrt(sum (ulp / 2)^2); what is accumulated adds up.
void add_projection(const LinearDesc& desc, const WeightSource& source, const CaseContext& context,
                    std::vector<Case<LinearOp>>& cases) {
  const int32_t tokens = std::min(5, context.bucket.tokens);
  const Setup setup{desc, &source, tokens, tokens / 2, Residual::kNone};
  CaseRandom random(context.seed + 5);
  Case<LinearOp> made = place(setup, context, [&](int64_t, int64_t) { return random.normal(); });
  made.name = fmt::format("projection T={}", setup.tokens);
  const int64_t tiles = (desc.n + kTile - 1) / kTile;
  struct Tile {
    int64_t first, count;
    std::vector<double> signs, expected, accumulated;
  };
  auto projected = std::make_shared<std::vector<Tile>>();
  CaseRows rows(source.matrices, desc.k);
  const auto size = static_cast<size_t>(desc.k);
  std::vector<double> signed_sum(size), magnitudes(size);
  std::vector<std::vector<double>> x, shifts;
  for (int32_t t = 0; t < setup.tokens; ++t) {
    x.push_back(made.bench->initial_row(kArrays.x, t));
    shifts.push_back(case_shifts(desc.format, desc.activation, x.back()));
  }
  const int64_t step = std::max<int64_t>(1, desc.n * desc.k / kProjected);
  for (int64_t tile = random.below(step); tile < tiles; tile += step) {
    Tile entry{tile * kTile, std::min(kTile, desc.n - tile * kTile), {}, {}, {}};
    std::fill(signed_sum.begin(), signed_sum.end(), 0.0);
    std::fill(magnitudes.begin(), magnitudes.end(), 0.0);
    for (int64_t n = 0; n < entry.count; ++n) {
      entry.signs.push_back(random.next() & 1 ? 1.0 : -1.0);
      const auto weights = rows.row(entry.first + n);
      const double factor = entry.signs.back() * rows.scale();
      for (size_t k = 0; k < size; ++k) {
        signed_sum[k] += factor * weights[k];
        magnitudes[k] += std::abs(factor * weights[k]);
      }
    }
    for (int32_t t = 0; t < setup.tokens; ++t) {
      const auto& values = x[static_cast<size_t>(t)];
      const auto& moves = shifts[static_cast<size_t>(t)];
      double sum = 0, absolute = 0, shifted = 0;
      for (size_t k = 0; k < size; ++k) {
        sum += values[k] * signed_sum[k];
        absolute += std::abs(values[k]) * magnitudes[k];
        shifted += moves[k] * magnitudes[k];
      }
      entry.expected.push_back(sum);
      entry.accumulated.push_back(sum_error(desc.k, absolute + shifted) + shifted + 2 * kUnit * absolute);
    }
    projected->push_back(std::move(entry));
  }
  made.judge = [bench = made.bench.get(), projected, desc](Comparison& comparison) {
    for (const Tile& tile : *projected) {
      for (size_t t = 0; t < tile.expected.size(); ++t) {
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < tile.count; ++n) {
          const double y = bench->at(kArrays.y, static_cast<int64_t>(t), tile.first + n);
          sum += tile.signs[static_cast<size_t>(n)] * y;
          squares += ulp(desc.output, y) * ulp(desc.output, y) / 4;
        }
        comparison.within(Evidence::kProjection, "y r", static_cast<int64_t>(t), tile.first, sum, tile.expected[t],
                          tile.accumulated[t] + 6 * std::sqrt(squares));
      }
    }
  };
  cases.push_back(std::move(made));
}

// Tokens with three inputs that are not zero: x_a w_a and x_c w_c cancel for one output n, with x_a = w_c and
// x_c = -w_a (rounded to the activations' dtype where a weight has more bits, and then not quite); x_b w_b, smaller
// than those by 2^-8, 2^-12 or 2^-16, is what is left. a, b and c are 1 to 64 apart, so that with one distance or
// another the three meet in one partial sum, whatever the row's order. The codes of a block of NVFP4 differ by a factor
// of 12 at most, so all three are multiples of its g: fixed blocks move none of them.
void add_accumulator(const LinearDesc& desc, const WeightSource& source, const CaseContext& context,
                     std::vector<Case<LinearOp>>& cases) {
  constexpr int64_t kDistances[] = {1, 16, 2, 32, 4, 64, 8};
  constexpr int kShifts[] = {12, 8, 16};
  struct Probe {
    int64_t a, b, c, n;
    double x_a, x_b, x_c, expected, accumulated;
  };
  const auto most = std::min<int64_t>({kRunWork / (desc.n * desc.k), context.bucket.tokens,
                                       static_cast<int64_t>(std::size(kDistances) * std::size(kShifts))});
  CaseRandom random(context.seed + 11);
  CaseRows rows(source.matrices, desc.k);
  auto probes = std::make_shared<std::vector<Probe>>();
  for (int64_t i = 0; i < most; ++i) {
    const int64_t distance = kDistances[static_cast<size_t>(i) % std::size(kDistances)];
    const int shift = kShifts[static_cast<size_t>(i) / std::size(kDistances)];
    if (2 * distance >= desc.k) continue;
    const int64_t a = random.below(desc.k - 2 * distance), b = a + distance, c = b + distance, n = random.below(desc.n);
    const auto w = rows.row(n);
    const double w_a = w[static_cast<size_t>(a)], w_b = w[static_cast<size_t>(b)], w_c = w[static_cast<size_t>(c)];
    if (w_a == 0 || w_b == 0 || w_c == 0) continue;
    const double large = std::abs(w_a * w_c);
    const double x_b = std::ldexp(1.0, std::ilogb(large / std::abs(w_b)) - shift);
    const double x_a = round_to_dtype(desc.activation, w_c), x_c = -round_to_dtype(desc.activation, w_a);
    const double sum = rows.scale() * (x_a * w_a + x_b * w_b + x_c * w_c);
    const double magnitudes = std::abs(rows.scale()) * (2 * large + std::abs(x_b * w_b));
    double accumulated = sum_error(3, magnitudes) + kUnit * std::abs(sum);
    if (desc.activation == DType::kF32) accumulated += kUnit * magnitudes;
    probes->push_back({a, b, c, n, x_a, x_b, x_c, sum, accumulated});
  }
  if (probes->empty()) return;
  const auto tokens = static_cast<int32_t>(probes->size());
  const Setup setup{desc, &source, tokens, decode_tokens(tokens, 2, context.bucket), Residual::kNone};
  Case<LinearOp> made = place(setup, context, [&](int64_t t, int64_t k) {
    const Probe& probe = (*probes)[static_cast<size_t>(t)];
    return k == probe.a ? probe.x_a : k == probe.b ? probe.x_b : k == probe.c ? probe.x_c : 0.0;
  });
  made.name = fmt::format("accumulator T={}", tokens);
  made.judge = [bench = made.bench.get(), probes, desc](Comparison& comparison) {
    for (size_t t = 0; t < probes->size(); ++t) {
      const Probe& probe = (*probes)[t];
      comparison.within(Evidence::kAccumulator, "y", static_cast<int64_t>(t), probe.n,
                        bench->at(kArrays.y, static_cast<int64_t>(t), probe.n), probe.expected,
                        probe.accumulated + ulp(desc.output, std::abs(probe.expected) + probe.accumulated));
    }
  };
  cases.push_back(std::move(made));
}

}  // namespace

std::vector<Case<LinearOp>> make_cases(const LinearDesc& desc, const LinearOp::Weights& weights,
                                       const CaseContext& context) {
  std::vector<Case<LinearOp>> cases;
  const WeightSource& source = context.weights.source(weights.matrix);
  const auto most =
      static_cast<int32_t>(std::clamp<int64_t>(run_work(context, kRunWork) / (desc.n * desc.k), 3, 100'000));
  std::vector<int32_t> counts = token_counts(context, context.bucket.tokens, most);
  // Rows take other ways for the tokens of a small batch, above a few, and for many: those are seen whatever the sizes.
  for (const int32_t crowd : {4, 8, 17, kManyTokens}) {
    const bool small = context.effort == Effort::kNormal && crowd * desc.n * desc.k <= kCrowdWork;
    if (small && counts.back() < crowd && crowd <= context.bucket.tokens) counts.push_back(crowd);
  }
  for (int32_t tokens : counts) {
    const auto kind = static_cast<Residual>(cases.size() % 3);
    const int32_t decode = tokens == kManyTokens ? 0 : decode_tokens(tokens, cases.size(), context.bucket);
    add_sampled({desc, &source, tokens, decode, context.effort == Effort::kWeights ? Residual::kNone : kind}, context,
                cases);
  }
  if (context.effort != Effort::kLight && context.effort != Effort::kWeights &&
      kNotFiniteTokens <= context.bucket.tokens) {
    add_sampled({desc, &source, kNotFiniteTokens, decode_tokens(kNotFiniteTokens, cases.size(), context.bucket),
                 Residual::kNone, true},
                context, cases);
  }
  if (context.effort != Effort::kLight) {
    add_projection(desc, source, context, cases);
    add_accumulator(desc, source, context, cases);
  }
  add_identity(desc, source, context, cases);
  return cases;
}

LinearOp::Weights synthetic(const LinearDesc& desc, CaseWeights& weights, CaseRandom& random) {
  // Three matrices with global scales of their own where the rows allow it, as fused projections have.
  const int64_t first = desc.n / 2, second = desc.n / 4;
  const double magnitude = 1 / std::sqrt(static_cast<double>(desc.k));
  if (second == 0) return {weights.add({{desc.format, desc.n, desc.k}}, magnitude, random)};
  return {weights.add(
      {{desc.format, first, desc.k}, {desc.format, second, desc.k}, {desc.format, desc.n - first - second, desc.k}},
      magnitude, random)};
}

}  // namespace assay::ops
