// What experts is proven with.
//
// h = round(silu(g) * u): g and u are bounded as linear's sums (dg, du); |silu'| <= 1.1, so
//   dh = 1.1 dg |u| + |silu(g)| du + (8 + |g|) u |h|, and one ulp of h for the declared rounding (checked through the
//   tap).
// d as linear's: by how much fixed blocks move what enters a product, here of h. It counts in the sums of magnitudes
// too. y: the row's h is round(h') with |h' - h| <= dh. Where round(h - dh) = round(h + dh) it is known exactly;
// elsewhere the middle of the two is taken and e_h, their distance, enters y with its weight: a right row is off by
// half of it.
//   accumulated = sum |w s W| (e_h + d_h) + sum_error(I, sum|w s W h|) + (k + 2) u (sum|w s W h| + |shared term|)
//   rounding    = ulp(sum) for the inner round(), and with a residual ulp(|residual + sum| + accumulated + ulp(sum))
#include <algorithm>
#include <map>
#include <numeric>

#include "ops/all_cases.h"
#include "ops/case_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kCheckWork = 1'500'000;
constexpr int64_t kRunWork = 15'000'000;
constexpr int64_t kCrowdWork = 4'000'000'000;  // of a case in which experts have more tokens

struct Arrays {
  int x, ids, weights, y, shared, shared_scale;
};

// One checked choice of a token.
struct Use {
  int64_t token;
  int32_t choice;
  double weight;
  std::vector<double> x, shifts;
  std::vector<double> exact, rounded, hidden_error, uncertain;  // [I]
};

struct Output {
  double sum = 0, magnitudes = 0, uncertain = 0;
};

struct Expected {
  std::vector<Use> uses;
  std::map<int64_t, std::vector<Output>> outputs;  // by token: [hidden], without shared term
};

using Choice = std::function<int32_t(int64_t token, int32_t choice)>;

// Different experts for every token: offset moves with the token, so all experts are used in turn.
Choice choices(int pattern, const ExpertsDesc& desc, uint64_t seed) {
  const int32_t experts = desc.experts, top_k = desc.top_k;
  if (pattern == 0) {  // every expert in turn, not in ascending order
    return [=](int64_t t, int32_t i) { return static_cast<int32_t>((t * top_k + (top_k - 1 - i)) % experts); };
  }
  if (pattern == 1) {  // all tokens on the same experts: the others get none
    return [=](int64_t, int32_t i) {
      return static_cast<int32_t>((seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(experts));
    };
  }
  // Expert 1 (of one expert: 0) gets the first 17 tokens, the rest spread over the others.
  return [=](int64_t t, int32_t i) {
    if (i == 0 && t < 17) return std::min(1, experts - 1);
    const int32_t others = experts - 1;
    if (others < top_k) return (static_cast<int32_t>(t) + i) % experts;
    const auto other = static_cast<int32_t>((3 * t + i) % others);
    return other + (other >= 1 ? 1 : 0);
  };
}

// terms: how many products of a sum are not zero; one is exact.
void expect_hidden(const ExpertsDesc& desc, const WeightSource& source, int32_t expert, std::vector<Use*>& uses,
                   int64_t terms) {
  CaseRows gate_rows({&source.matrices[static_cast<size_t>(3 * expert)], 1}, desc.hidden);
  CaseRows up_rows({&source.matrices[static_cast<size_t>(3 * expert + 1)], 1}, desc.hidden);
  const auto error = [&](const CaseDot& dot, double scale) {
    const double magnitudes = dot.magnitudes * std::abs(scale), shifted = dot.shifted * std::abs(scale);
    const double products = desc.activation == DType::kF32 ? kUnit * magnitudes : 0;
    const double sums = terms == 1 ? 0 : sum_error(terms, magnitudes + shifted) + shifted;
    return sums + products + kUnit * std::abs(dot.sum * scale);
  };
  for (int64_t row = 0; row < desc.intermediate; ++row) {
    const auto gate = gate_rows.row(row);
    const auto up = up_rows.row(row);
    for (Use* use : uses) {
      const CaseDot g_dot = case_dot(use->x, use->shifts, gate), u_dot = case_dot(use->x, use->shifts, up);
      const double g = g_dot.sum * gate_rows.scale(), u = u_dot.sum * up_rows.scale();
      const double silu = g / (1 + std::exp(-g)), h = silu * u;
      const double dg = error(g_dot, gate_rows.scale()), du = error(u_dot, up_rows.scale());
      const double dh = 1.1 * dg * std::abs(u) + std::abs(silu) * du + (8 + std::abs(g)) * kUnit * std::abs(h) +
                        (g < -80 ? 1e-33 * std::abs(u) : 0);
      const double low = round_to_dtype(desc.activation, h - dh), high = round_to_dtype(desc.activation, h + dh);
      use->exact.push_back(h);
      use->hidden_error.push_back(dh);
      use->rounded.push_back((low + high) / 2);
      use->uncertain.push_back(low == high ? 0 : high - low);
    }
  }
}

void expect_outputs(const ExpertsDesc& desc, const WeightSource& source, int32_t expert, const std::vector<Use*>& uses,
                    Expected& expected) {
  CaseRows down({&source.matrices[static_cast<size_t>(3 * expert + 2)], 1}, desc.intermediate);
  std::vector<std::vector<double>> shifts;
  for (const Use* use : uses) {
    std::vector<double> largest(use->rounded.size());
    for (size_t j = 0; j < largest.size(); ++j) largest[j] = std::abs(use->rounded[j]) + use->uncertain[j];
    shifts.push_back(case_shifts(desc.format, desc.activation, largest));
  }
  for (int64_t n = 0; n < desc.hidden; ++n) {
    const auto weights = down.row(n);
    for (size_t i = 0; i < uses.size(); ++i) {
      const Use* use = uses[i];
      const double factor = use->weight * down.scale();
      double uncertain = 0;
      const CaseDot dot = case_dot(use->rounded, shifts[i], weights);
      for (size_t j = 0; j < weights.size(); ++j) uncertain += std::abs(weights[j]) * use->uncertain[j];
      Output& output = expected.outputs[use->token][static_cast<size_t>(n)];
      output.sum += factor * dot.sum;
      output.magnitudes += std::abs(factor) * (dot.magnitudes + dot.shifted);
      output.uncertain += std::abs(factor) * (uncertain + dot.shifted);
    }
  }
}

struct Setup {
  std::string name;
  int32_t tokens;
  Choice choice;
  Bench::Value input;
  bool shared = false, residual = false;
  Evidence kind = Evidence::kSampled;  // identity: one-hot tokens; accumulator: of three inputs that are not zero
  int64_t check_work = kCheckWork;
  bool not_finite = false;
  bool outputs() const { return kind == Evidence::kSampled; }
};

Expected expect(const ExpertsDesc& desc, const WeightSource& source, const Bench& bench, const Arrays& arrays,
                const Setup& setup) {
  const int32_t tokens = setup.tokens;
  // Probes of the accumulator are of the first choice.
  const int32_t judged = setup.kind == Evidence::kAccumulator ? 1 : desc.top_k;
  const int64_t terms = setup.kind == Evidence::kIdentity ? 1 : setup.kind == Evidence::kAccumulator ? 3 : desc.hidden;
  Expected expected;
  const int64_t token_work = 3 * desc.hidden * desc.intermediate * desc.top_k;
  const int64_t checked = std::clamp<int64_t>(setup.check_work / token_work, 1, tokens);
  for (int64_t i = 0; i < checked; ++i) {
    const int64_t t = tokens - 1 - i * tokens / checked;
    expected.outputs[t].resize(static_cast<size_t>(desc.hidden));
    for (int32_t choice = 0; choice < judged; ++choice) {
      expected.uses.push_back(
          {t, choice, bench.initial(arrays.weights, t, choice), bench.initial_row(arrays.x, t), {}, {}, {}, {}, {}});
      Use& use = expected.uses.back();
      use.shifts = case_shifts(desc.format, desc.activation, use.x);
    }
  }
  std::map<int32_t, std::vector<Use*>> by_expert;
  for (Use& use : expected.uses) {
    by_expert[static_cast<int32_t>(bench.initial(arrays.ids, use.token, use.choice))].push_back(&use);
  }
  for (auto& [expert, uses] : by_expert) {
    expect_hidden(desc, source, expert, uses, terms);
    if (setup.outputs()) expect_outputs(desc, source, expert, uses, expected);
  }
  return expected;
}

void judge_hidden(const ExpertsDesc& desc, const Expected& expected, const SiteTap& tap, Evidence kind,
                  Comparison& comparison) {
  if (!tap.seen()) {
    comparison.fail(kind, "the row does not show experts.hidden to taps");
    return;
  }
  for (const Use& use : expected.uses) {
    const int64_t row = use.token * desc.top_k + use.choice;
    for (size_t j = 0; j < use.exact.size(); ++j) {
      const double bound = use.hidden_error[j] + ulp(desc.activation, std::abs(use.exact[j]) + use.hidden_error[j]);
      comparison.within(kind, "h", row, static_cast<int64_t>(j), tap.at(row, static_cast<int64_t>(j)), use.exact[j],
                        bound);
    }
  }
}

void judge_outputs(const ExpertsDesc& desc, const Expected& expected, const Bench& bench, const Arrays& arrays,
                   bool residual, Comparison& comparison) {
  for (const auto& [t, outputs] : expected.outputs) {
    Block block;
    for (int64_t n = 0; n < desc.hidden; ++n) {
      const Output& output = outputs[static_cast<size_t>(n)];
      double sum = output.sum, magnitudes = output.magnitudes;
      if (arrays.shared >= 0) {
        const double term = bench.initial(arrays.shared_scale, t, 0) * bench.initial(arrays.shared, t, n);
        sum += term;
        magnitudes += std::abs(term);
      }
      const double accumulated =
          output.uncertain + sum_error(desc.intermediate, output.magnitudes) + (desc.top_k + 2) * kUnit * magnitudes;
      const double value = sum + (residual ? bench.initial(arrays.y, t, n) : 0);
      double rounding = ulp(desc.activation, std::abs(sum) + accumulated);
      if (residual) rounding += ulp(desc.activation, std::abs(value) + accumulated + rounding);
      const double got = bench.at(arrays.y, t, n);
      comparison.within(Evidence::kSampled, "y", t, n, got, value, accumulated + rounding);
      if (!residual && arrays.shared < 0 && std::isfinite(value)) block.add(got, value, accumulated, rounding);
      if (n % 256 != 255) continue;
      block.judge(comparison, "y", t, n / 256 * 256);
      block = {};
    }
  }
}

Case<ExpertsOp> make_case(const ExpertsDesc& desc, const WeightSource& source, const CaseContext& context,
                          const Setup& setup) {
  Case<ExpertsOp> made;
  const int32_t tokens = setup.tokens;
  CaseRandom random(context.seed + 31 * static_cast<uint64_t>(tokens));
  made.name = setup.name;
  made.work = 3 * desc.hidden * desc.intermediate * desc.top_k * tokens;
  made.bucket = {tokens, tokens, tokens};
  made.bench = std::make_unique<Bench>(context.device, tokens % 2 == 0);
  Bench& bench = *made.bench;
  Arrays arrays{-1, -1, -1, -1, -1, -1};
  arrays.x = bench.add("x", desc.activation, tokens, desc.hidden, Role::kInput, 64, setup.input);
  arrays.ids = bench.add("ids", DType::kI32, tokens, desc.top_k, Role::kInput, 0, [&](int64_t t, int64_t i) {
    return static_cast<double>(setup.choice(t, static_cast<int32_t>(i)));
  });
  arrays.weights = bench.add("weights", DType::kF32, tokens, desc.top_k, Role::kInput, 0,
                             [&](int64_t, int64_t) { return (0.2 + random.uniform()) / desc.top_k; });
  const auto normal = [&](int64_t, int64_t) { return random.normal(); };
  arrays.y = bench.add("y", desc.activation, tokens, desc.hidden, setup.residual ? Role::kInOut : Role::kOutput, 64,
                       setup.residual ? Bench::Value(normal) : Bench::Value());
  made.args = {{0, tokens}, bench.view(arrays.x), bench.view(arrays.ids), bench.view(arrays.weights), {}, {},
               {},          bench.view(arrays.y)};
  if (setup.residual) {
    for (int64_t t = 0; t < tokens; ++t) bench.expect_written(arrays.y, t * bench.view(arrays.y).stride, desc.hidden);
    made.args.residual = bench.view(arrays.y);
  }
  if (setup.shared) {
    arrays.shared = bench.add("shared", desc.activation, tokens, desc.hidden, Role::kInput, 64, normal);
    arrays.shared_scale = bench.add("shared_scale", DType::kF32, tokens, 1, Role::kInput, 0,
                                    [&](int64_t, int64_t) { return random.uniform(); });
    made.args.shared = bench.view(arrays.shared);
    made.args.shared_scale = bench.view(arrays.shared_scale);
  }
  auto expected = std::make_shared<Expected>(expect(desc, source, bench, arrays, setup));
  made.digest = !setup.not_finite;  // NaNs have many encodings
  if (!setup.residual) made.tap = std::make_unique<SiteTap>(context.device, "experts.hidden");
  made.judge = [&bench, tap = made.tap.get(), desc, expected, arrays, setup](Comparison& comparison) {
    if (tap != nullptr) judge_hidden(desc, *expected, *tap, setup.kind, comparison);
    if (setup.outputs()) judge_outputs(desc, *expected, bench, arrays, setup.residual, comparison);
  };
  return made;
}

// Tokens with three inputs that are not zero, as those of linear: little is left of the first choice's gate sum of one
// hidden value, or of its up sum.
void add_accumulator(const ExpertsDesc& desc, const WeightSource& source, const CaseContext& context,
                     std::vector<Case<ExpertsOp>>& cases) {
  constexpr int64_t kDistances[] = {1, 16, 2, 32, 4, 64, 8};
  constexpr int32_t kProbes = 2 * static_cast<int32_t>(std::size(kDistances));
  struct Probe {
    int64_t first, distance;
    double x[3];
  };
  CaseRandom random(context.seed + 11);
  std::vector<Probe> probes;
  const Choice choice = choices(1, desc, context.seed);
  for (int32_t t = 0; t < std::min(kProbes, context.bucket.tokens); ++t) {
    const int64_t distance = std::min(kDistances[static_cast<size_t>(t / 2)], (desc.hidden - 1) / 2);
    const int64_t first = random.below(desc.hidden - 2 * distance), row = random.below(desc.intermediate);
    CaseRows rows({&source.matrices[static_cast<size_t>(3 * choice(t, 0) + t % 2)], 1}, desc.hidden);
    const auto w = rows.row(row);
    const double w_a = w[static_cast<size_t>(first)], w_b = w[static_cast<size_t>(first + distance)],
                 w_c = w[static_cast<size_t>(first + 2 * distance)];
    if (distance == 0 || w_a == 0 || w_b == 0 || w_c == 0) continue;
    const double little = std::ldexp(1.0, std::ilogb(std::abs(w_a * w_c / w_b)) - 12);
    probes.push_back(
        {first, distance, {round_to_dtype(desc.activation, w_c), little, -round_to_dtype(desc.activation, w_a)}});
  }
  if (probes.empty()) return;
  const auto input = [&](int64_t t, int64_t k) {
    const Probe& probe = probes[static_cast<size_t>(t)];
    const int64_t from = k - probe.first;
    const bool inside = from >= 0 && from <= 2 * probe.distance && from % probe.distance == 0;
    return inside ? probe.x[from / probe.distance] : 0.0;
  };
  const auto tokens = static_cast<int32_t>(probes.size());
  cases.push_back(make_case(desc, source, context,
                            {fmt::format("accumulator T={}", tokens), tokens, choice, input, false, false,
                             Evidence::kAccumulator, int64_t{1} << 40}));
}

}  // namespace

std::vector<Case<ExpertsOp>> make_cases(const ExpertsDesc& desc, const ExpertsOp::Weights& weights,
                                        const CaseContext& context) {
  std::vector<Case<ExpertsOp>> cases;
  const WeightSource& source = context.weights.source(weights.experts);
  const int64_t token_work = 3 * desc.hidden * desc.intermediate * desc.top_k;
  const bool weights_only = context.effort == Effort::kWeights;
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(run_work(context, kRunWork) / token_work, 3, 100'000));
  std::vector<int32_t> counts = token_counts(context, context.bucket.tokens, most);
  // Rows take another way above a few tokens of an expert: that is seen whatever the sizes.
  constexpr int32_t kCrowd = 17;
  const bool crowd = counts.back() < kCrowd && kCrowd <= context.bucket.tokens && kCrowd * token_work <= kCrowdWork;
  if (crowd && context.effort != Effort::kLight) counts.insert(counts.end(), 2, kCrowd);  // of decode, and of a prompt
  const int64_t many = (int64_t{kManyTokens} * desc.experts + desc.top_k - 1) / desc.top_k;  // for each expert
  if (counts.back() < many && many <= context.bucket.tokens && many * token_work <= kCrowdWork &&
      context.effort != Effort::kLight) {
    counts.push_back(static_cast<int32_t>(many));
  }
  for (int32_t tokens : counts) {
    if (weights_only) break;
    auto random = std::make_shared<CaseRandom>(context.seed + static_cast<uint64_t>(tokens));
    const int pattern = crowd && tokens == kCrowd ? 2 : tokens == many ? 0 : static_cast<int>(cases.size() % 3);
    const int extras = static_cast<int>(cases.size() % 4);
    const bool residual = extras == 1 || extras == 3, shared = extras >= 2;
    constexpr std::string_view kPatterns[] = {"in turn", "on one", "17 on one"};
    cases.push_back(make_case(
        desc, source, context,
        {fmt::format("{} T={}{}{}", kPatterns[pattern], tokens, shared ? " shared" : "", residual ? " in place" : ""),
         tokens, choices(pattern, desc, context.seed),
         [random](int64_t t, int64_t k) { return (t % 8 == 4 ? 0x1p-14 : 1) * mixed_input(*random, t, k); }, shared,
         residual}));
  }
  constexpr int32_t kNotFinite = 5;
  if (!weights_only && context.effort != Effort::kLight && kNotFinite <= context.bucket.tokens) {
    // A NaN in the last token, and in no other's outputs.
    auto random = std::make_shared<CaseRandom>(context.seed + 13);
    Setup setup{"not finite", kNotFinite, choices(1, desc, context.seed), {}};
    setup.input = [random, &desc](int64_t t, int64_t k) {
      const double usual = mixed_input(*random, t, k);
      return t == kNotFinite - 1 && k == desc.hidden / 2 ? std::nan("") : usual;
    };
    setup.not_finite = true;
    cases.push_back(make_case(desc, source, context, setup));
  }
  // Every expert once: one-hot tokens, and dense ones whose every output is checked.
  const auto wanted = static_cast<int32_t>((desc.experts + desc.top_k - 1) / desc.top_k);
  const auto all = static_cast<int32_t>(
      std::min<int64_t>(std::min<int64_t>(wanted, context.bucket.tokens),
                        context.effort == Effort::kFull ? wanted : std::max<int64_t>(1, 60'000'000 / token_work)));
  const auto offset = static_cast<int64_t>(context.seed % 16);
  const int64_t blocks = (desc.hidden + 15) / 16;
  for (int round = 0; round < (context.effort == Effort::kLight ? 1 : 2); ++round) {
    cases.push_back(make_case(desc, source, context,
                              {fmt::format("one-hot {}", round), all, choices(0, desc, 0),
                               [=](int64_t t, int64_t k) {
                                 const int64_t block = (7 * t + 11 * round + offset) % blocks;
                                 return k == 16 * block + (5 * t + round + offset) % 16 ? 4.0 : 0.0;
                               },
                               false, false, Evidence::kIdentity, int64_t{1} << 40}));
  }
  auto random = std::make_shared<CaseRandom>(context.seed + 9);
  cases.push_back(make_case(
      desc, source, context,
      {"every expert", all, choices(0, desc, 0),
       [random, &context, &desc](int64_t t, int64_t k) {
         const auto* known = activation_input(context, t, desc.hidden);
         return known == nullptr ? random->normal() : (*known)[static_cast<size_t>(k)];
       },
       false, false, Evidence::kSampled, context.effort == Effort::kFull ? int64_t{1} << 40 : 8 * kCheckWork}));
  if (context.effort != Effort::kLight) add_accumulator(desc, source, context, cases);
  size_t crowds = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    TokenCounts& tokens = cases[i].args.tokens;
    const bool crowded = crowd && tokens.total == kCrowd;
    tokens.decode = tokens.total == many ? 0 : decode_tokens(tokens.total, crowded ? crowds++ : i, context.bucket);
  }
  return cases;
}

ExpertsOp::Weights synthetic(const ExpertsDesc& desc, CaseWeights& weights, CaseRandom& random) {
  std::vector<CaseWeights::Shape> shapes;
  for (int32_t e = 0; e < desc.experts; ++e) {
    shapes.push_back({desc.format, desc.intermediate, desc.hidden});
    shapes.push_back({desc.format, desc.intermediate, desc.hidden});
    shapes.push_back({desc.format, desc.hidden, desc.intermediate});
  }
  return {weights.add(shapes, 1 / std::sqrt(static_cast<double>(desc.hidden)), random)};
}

}  // namespace assay::ops
