#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/sample/sample_random.h"
#include "ops/sample/sample_ranking.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using namespace testing;

constexpr double kU = 0x1p-24;  // unit roundoff of fp32
constexpr const char* kRows[] = {"cpu_portable", "reference"};

std::vector<SampleResult> run(std::string_view row, const SampleDesc& desc, const Tensor& logits,
                              const std::vector<SampleParams>& params, int threads = 1, uint32_t* flag = nullptr,
                              const std::vector<LogitAdjustment>& adjustments = {}) {
  Cpu cpu(threads);
  const auto rows = static_cast<int32_t>(params.size());
  std::vector<SampleResult> results(params.size());
  Sentinel flags{flag};
  cpu.prepare<SampleOp>(row, desc, {rows, rows})
      .run({rows, logits.view(), params.data(), results.data(), adjustments.data()}, nullptr,
           flag == nullptr ? nullptr : &flags, 0);
  return results;
}

Tensor logits_of(const std::vector<std::vector<float>>& rows) {
  Tensor logits(DType::kF32, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size()));
  logits.fill([&](int64_t row, int64_t col) { return rows[static_cast<size_t>(row)][static_cast<size_t>(col)]; });
  return logits;
}

SampleParams hot(float temperature, uint64_t seed = 1, uint64_t counter = 0) {
  SampleParams params;
  params.temperature = temperature;
  params.seed = seed;
  params.counter = counter;
  return params;
}

// The answers published with the generator (Random123, kat_vectors).
TEST(SampleRandom, KnownAnswers) {
  const auto expect = [](PhiloxBlock counter, uint32_t low, uint32_t high, PhiloxBlock wanted) {
    const PhiloxBlock block = philox4x32(counter, low, high);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.words[i], wanted.words[i]) << i;
  };
  expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  const uint32_t ones = 0xffffffff;
  expect({{ones, ones, ones, ones}}, ones, ones, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
  EXPECT_EQ(sample_uniform(0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
}

TEST(SampleRandom, UniformIsUniform) {
  double sum = 0, squares = 0, lag = 0, previous = 0;
  const int draws = 100000;
  for (int i = 0; i < draws; ++i) {
    const double u = sample_uniform(42, static_cast<uint64_t>(i));
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
    lag += (u - 0.5) * (previous - 0.5);
    previous = u;
  }
  EXPECT_NEAR(sum / draws, 0.5, 4 * 0.2887 / std::sqrt(draws));
  EXPECT_NEAR(squares / draws, 1 / 3.0, 4 * 0.2981 / std::sqrt(draws));
  EXPECT_NEAR(lag / draws, 0.0, 4 / 12.0 / std::sqrt(draws));
}

// Against a full sort, for columns in two orders: the same prefixes and the same bits in their sums.
TEST(SampleRanking, PrefixesAreThoseOfASort) {
  Random random(31);
  for (const float spread : {0.01f, 3.0f, 12.0f}) {
    for (const int32_t count : {1, 2, 7, 64, 1001}) {
      std::vector<Candidate> columns;
      for (int32_t id = 0; id < count; ++id) {
        const float logit = spread * random.normal();
        columns.push_back({id % 5 == 0 ? std::round(logit) : logit, id});
      }
      std::vector<Candidate> sorted = columns, members(columns.size());
      std::sort(sorted.begin(), sorted.end(), before);
      const float largest = sorted[0].logit;
      const auto padded = [&](std::vector<Candidate> some) {
        some.resize(some.size() + Ranking::kPad, {NAN, -1});
        return some;
      };
      const auto rising = padded(columns), falling = padded({columns.rbegin(), columns.rend()});
      const Ranking one(rising.data(), count, largest, 0.7f, 4, members.data());
      const Ranking other(falling.data(), count, largest, 0.7f, 32, members.data());
      double sum = 0;
      for (int32_t i = 0; i < count; ++i) {
        const double before_it = sum;
        sum +=
            rounded_weight(cpu::fast_exp(cpu::broadcast((sorted[static_cast<size_t>(i)].logit - largest) / 0.7f)))[0];
        for (const Ranking* ranking : {&one, &other}) {
          const auto first = ranking->first(i + 1);
          ASSERT_EQ(first.count, i + 1);
          ASSERT_EQ(first.last, sorted[static_cast<size_t>(i)].id);
          ASSERT_EQ(first.sum, sum);
          if (sum == before_it) continue;
          for (const double wanted : {sum, std::nextafter(before_it, 1e9)}) {
            ASSERT_EQ(ranking->reaching(wanted).last, sorted[static_cast<size_t>(i)].id);
          }
        }
      }
      EXPECT_EQ(one.reaching(0).count, 1);
      EXPECT_EQ(one.first(count + 1).count, count);
      EXPECT_EQ(one.reaching(std::nextafter(sum, 1e9)).sum, sum);
      EXPECT_EQ(one.count_at_least(1), other.count_at_least(1));
      EXPECT_EQ(one.count_at_least(0), count);
    }
  }
}

// 2^19 weights of all sizes: fp64 holds their sum to the last bit, so that halves and whole agree in any order.
TEST(SampleRanking, WeightsAddUpExactly) {
  Random random(37);
  std::vector<float> weights(kRankingColumns);
  __int128 exact = 0;  // in units of 2^-34
  double rising = 0, falling = 0;
  for (float& weight : weights) {
    const float p = cpu::fast_exp(random.uniform(-26, 0));
    weight = rounded_weight(cpu::broadcast(p))[0];
    ASSERT_NEAR(weight, p, std::max(0x1p-35, 0x1p-22 * static_cast<double>(p)));
    exact += static_cast<int64_t>(std::ldexp(static_cast<double>(weight), 34));
    ASSERT_EQ(std::ldexp(static_cast<double>(weight), 34), std::floor(std::ldexp(static_cast<double>(weight), 34)));
    rising += weight;
  }
  for (size_t i = weights.size(); i-- > 0;) falling += weights[i];
  EXPECT_EQ(rising, falling);
  EXPECT_EQ(static_cast<double>(exact), std::ldexp(rising, 34));
  EXPECT_EQ(rounded_weight(cpu::broadcast(1))[0], 1);
  EXPECT_EQ(rounded_weight(cpu::broadcast(cpu::fast_exp(-25)))[0], 0);
}

TEST(Sample, GreedyTiesGoToTheLowestId) {
  const SampleDesc desc{3000, 2900};
  std::vector<float> row(3000, -1.0f);
  row[2100] = row[1500] = row[1499] = 7.0f;
  row[2950] = 9.0f;  // padding
  for (const auto name : kRows) {
    const auto results = run(name, desc, logits_of({row}), {SampleParams{}});
    EXPECT_EQ(results[0].token, 1499) << name;
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(results[0].logprob, 7 - std::log(sum), 250 * kU + 2 * kU) << name;  // padding counts in the sum
  }
}

TEST(Sample, TopOneIsGreedy) {
  Random random(3);
  const SampleDesc desc{5000, 4990};
  Tensor logits(DType::kF32, 8, desc.vocab);
  logits.fill([&](int64_t, int64_t) { return static_cast<float>(random.below(50)); });  // many ties
  std::vector<SampleParams> greedy(8), top_one;
  for (uint64_t i = 0; i < 8; ++i) {
    top_one.push_back(hot(1.5f, i));
    top_one.back().top_k = 1;
  }
  for (const auto name : kRows) {
    const auto a = run(name, desc, logits, greedy);
    const auto b = run(name, desc, logits, top_one);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(a[i].token, b[i].token) << name;
  }
}

// Logits of several kinds: flat, normal, peaked, tied, far away, half of them -inf.
Tensor random_logits(Random& random, const SampleDesc& desc, int64_t rows) {
  Tensor logits(DType::kF32, rows, desc.vocab);
  return std::move(logits.fill([&](int64_t row, int64_t col) {
    if (col >= desc.real_vocab) return 30.0f;  // padding is always the largest, but for row 4
    switch (row % 6) {
      case 0:
        return 0.01f * random.normal();
      case 1:
        return 3.0f * random.normal();
      case 2:
        return 12.0f * random.normal();
      case 3:
        return static_cast<float>(random.below(6));
      case 4:
        return 1e6f + 8.0f * static_cast<float>(random.below(9));
      default:
        return random.below(2) == 0 ? -INFINITY : 2.0f * random.normal();
    }
  }));
}

std::vector<SampleParams> random_params(Random& random, int64_t rows) {
  const float temperatures[] = {0.0f, 1e-4f, 0.3f, 0.7f, 1.0f, 2.0f, 100.0f};
  const int32_t top_ks[] = {0, 0, 1, 2, 20, 40, 700, 100000};
  const float top_ps[] = {1.0f, 1.0f, 0.95f, 0.8f, 0.3f, 1e-6f, 0.9999f};
  const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-4f};
  std::vector<SampleParams> all;
  for (int64_t row = 0; row < rows; ++row) {
    SampleParams params = hot(temperatures[random.below(7)], random.next(), random.next() % 1000);
    params.top_k = top_ks[random.below(8)];
    params.top_p = top_ps[random.below(7)];
    params.min_p = min_ps[random.below(6)];
    params.top_logprobs = static_cast<int32_t>(random.below(kMaxTopLogprobs + 1));
    if (random.below(8) == 0) params.target = static_cast<int32_t>(random.below(100));
    all.push_back(params);
  }
  return all;
}

// Appends some adjustments for each row, now and then for every column.
std::vector<LogitAdjustment> random_adjustments(Random& random, const SampleDesc& desc,
                                                std::vector<SampleParams>& params) {
  const float scales[] = {1.0f, 1.1f, 0.5f, 2.0f};
  const float adds[] = {0.0f, -1.5f, 100.0f, -100.0f, -kBannedLogit, 0.25f};
  std::vector<LogitAdjustment> all;
  for (SampleParams& row : params) {
    const uint32_t one_in = random.below(4) == 0 ? 1 : 1 + random.below(60);
    row.first_adjustment = static_cast<int32_t>(all.size());
    for (int32_t token = 0; token < desc.real_vocab; ++token) {
      if (random.below(one_in) == 0) all.push_back({token, scales[random.below(4)], adds[random.below(6)]});
    }
    row.adjustment_count = static_cast<int32_t>(all.size()) - row.first_adjustment;
  }
  return all;
}

// A row with adjustments draws the token of a row whose logits were changed beforehand, and reports the model's own
// log-probabilities.
TEST(Sample, AdjustmentsChangeTheTokenAlone) {
  for (const SampleDesc desc : {SampleDesc{1100, 1000}, SampleDesc{333, 333}, SampleDesc{5001, 4097}}) {
    Random random(static_cast<uint64_t>(desc.vocab) + 1);
    const Tensor logits = random_logits(random, desc, 120);
    const auto plain = random_params(random, 120);
    auto params = plain;
    const auto adjustments = random_adjustments(random, desc, params);
    Tensor changed(DType::kF32, 120, desc.vocab);
    changed.fill([&](int64_t row, int64_t col) { return static_cast<float>(logits.at(row, col)); });
    for (int64_t row = 0; row < 120; ++row) {
      const SampleParams& own = params[static_cast<size_t>(row)];
      for (int32_t i = 0; i < own.adjustment_count; ++i) {
        const LogitAdjustment& one = adjustments[static_cast<size_t>(own.first_adjustment + i)];
        const auto logit = static_cast<float>(logits.at(row, one.token));
        changed.set(row, one.token, (logit > 0 ? logit / one.scale : logit * one.scale) + one.add);
      }
    }
    int different = 0;
    for (const auto name : kRows) {
      const auto got = run(name, desc, logits, params, 2, nullptr, adjustments);
      const auto model = run(name, desc, logits, plain, 2);
      const auto wanted = run(name, desc, changed, plain, 2);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].token, wanted[i].token) << name << " row " << i;
        ASSERT_EQ(got[i].numerical_error, 0);
        different += got[i].token != model[i].token;
        SampleResult expected = model[i];  // all but the token and its own log-probability
        expected.token = got[i].token;
        expected.logprob = got[i].logprob;
        ASSERT_EQ(std::memcmp(&expected, &got[i], sizeof(expected)), 0) << name << " row " << i;
        if (got[i].token == model[i].token) {
          ASSERT_EQ(got[i].logprob, model[i].logprob) << name << " row " << i;
        }
      }
    }
    EXPECT_GT(different, 60);
  }
}

TEST(Sample, AdjustmentFormula) {
  const SampleDesc desc{4, 4};
  SampleParams params;
  params.top_logprobs = 2;
  const auto token = [&](std::string_view name, std::vector<LogitAdjustment> adjustments) {
    params.adjustment_count = static_cast<int32_t>(adjustments.size());
    const auto result = run(name, desc, logits_of({{2.0f, 1.5f, -1.0f, -3.0f}}), {params}, 1, nullptr, adjustments)[0];
    EXPECT_EQ(result.top_ids[0], 0);
    return result.token;
  };
  for (const auto name : kRows) {
    EXPECT_EQ(token(name, {}), 0);
    EXPECT_EQ(token(name, {{0, 1.3f, 0}}), 0);      // 1.54
    EXPECT_EQ(token(name, {{0, 1.4f, 0}}), 1);      // 1.43
    EXPECT_EQ(token(name, {{0, 1, -0.75f}}), 1);    // 1.25
    EXPECT_EQ(token(name, {{2, 0.5f, 2.75f}}), 2);  // -1 * 0.5 + 2.75 = 2.25; divided first it would be 0.75
    EXPECT_EQ(token(name, {{2, 2, 3.9f}}), 0);      // -2 + 3.9
    EXPECT_EQ(token(name, {{0, 1, -kBannedLogit}, {1, 1, -kBannedLogit}, {2, 1, -kBannedLogit}}), 3);
    EXPECT_GE(token(name, {{0, 1, -kBannedLogit}, {1, 1, -kBannedLogit}, {2, 1, -kBannedLogit}, {3, 1, -kBannedLogit}}),
              0);  // all banned: still a token
  }
}

// u meets a boundary of the running sum to within rounding (1e-5 of the whole) about once in 10^4 draws; none here.
TEST(Sample, RowsAgree) {
  for (const SampleDesc desc :
       {SampleDesc{1100, 1000}, SampleDesc{333, 333}, SampleDesc{2048, 1024}, SampleDesc{5001, 4997}}) {
    Random random(static_cast<uint64_t>(desc.vocab));
    const Tensor logits = random_logits(random, desc, 120);
    const auto params = random_params(random, 120);
    const auto portable = run("cpu_portable", desc, logits, params, 2);
    const auto reference = run("reference", desc, logits, params, 2);
    for (size_t i = 0; i < params.size(); ++i) {
      ASSERT_EQ(portable[i].token, reference[i].token) << "row " << i << " temperature " << params[i].temperature;
      ASSERT_LT(portable[i].token, desc.real_vocab);
      ASSERT_EQ(portable[i].numerical_error, 0);
      // a lane sums 128 terms, each off by 4 u and u * |logit - largest| <= 105 u; the result is rounded once
      const auto near = [](float a, float b) {
        return a == b || std::abs(static_cast<double>(a) - b) <= 250 * kU + 2 * kU * std::abs(static_cast<double>(b));
      };
      ASSERT_TRUE(near(portable[i].logprob, reference[i].logprob))
          << portable[i].logprob << " " << reference[i].logprob;
      ASSERT_EQ(portable[i].top_count, params[i].top_logprobs);
      ASSERT_EQ(reference[i].top_count, params[i].top_logprobs);
      for (int32_t j = 0; j < portable[i].top_count; ++j) {
        ASSERT_EQ(portable[i].top_ids[j], reference[i].top_ids[j]) << i << " " << j;
        ASSERT_TRUE(near(portable[i].top_logprobs[j], reference[i].top_logprobs[j])) << i << " " << j;
      }
    }
  }
}

TEST(Sample, NeitherBatchNorThreadsMatter) {
  const SampleDesc desc{3100, 3000};
  Random random(17);
  const Tensor logits = random_logits(random, desc, 24);
  const auto params = random_params(random, 24);
  const auto whole = run("cpu_portable", desc, logits, params, 1);
  const auto same = [](const SampleResult& a, const SampleResult& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; };
  for (const int threads : {2, 3}) {
    const auto again = run("cpu_portable", desc, logits, params, threads);
    for (size_t i = 0; i < 24; ++i) EXPECT_TRUE(same(again[i], whole[i])) << i;
  }
  for (int64_t i = 0; i < 24; ++i) {
    Tensor one(DType::kF32, 1, desc.vocab);
    one.fill([&](int64_t, int64_t col) { return static_cast<float>(logits.at(i, col)); });
    const auto alone = run("cpu_portable", desc, one, {params[static_cast<size_t>(i)]}, 2);
    EXPECT_TRUE(same(alone[0], whole[static_cast<size_t>(i)])) << i;
  }
}

// Chi-square of 20000 draws on fixed seeds against the wanted distribution; limit: probability 10^-4.
void expect_distribution(const std::vector<float>& row, SampleParams params, const std::vector<double>& wanted,
                         double limit) {
  const int draws = 20000;
  const SampleDesc desc{static_cast<int32_t>(row.size()), static_cast<int32_t>(wanted.size())};
  Tensor logits(DType::kF32, draws, desc.vocab, 0);
  logits.fill([&](int64_t, int64_t col) { return row[static_cast<size_t>(col)]; });
  std::vector<SampleParams> all(draws, params);
  for (int i = 0; i < draws; ++i) all[static_cast<size_t>(i)].counter = static_cast<uint64_t>(i);
  for (const auto name : kRows) {
    std::vector<double> counts(wanted.size());
    for (const SampleResult& result : run(name, desc, logits, all, 2)) ++counts[static_cast<size_t>(result.token)];
    double chi_square = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double expected = wanted[i] * draws;
      if (expected == 0) {
        EXPECT_EQ(counts[i], 0) << name << " token " << i;
      } else {
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      }
    }
    EXPECT_LT(chi_square, limit) << name;
  }
}

TEST(Sample, FrequenciesAreTheProbabilities) {
  // probabilities 8 4 2 1 1 of 16 at temperature 1, in mixed order; a padding column far above
  const float ln2 = std::log(2.0f);
  const std::vector<float> row = {ln2, 3 * ln2, 0.0f, 2 * ln2, 0.0f, 50.0f};
  expect_distribution(row, hot(1.0f, 5), {2 / 16., 8 / 16., 1 / 16., 4 / 16., 1 / 16.}, 23.5);
  expect_distribution(row, hot(0.5f, 6), {4 / 86., 64 / 86., 1 / 86., 16 / 86., 1 / 86.}, 23.5);
  SampleParams params = hot(1.0f, 7);
  params.top_k = 2;
  expect_distribution(row, params, {0, 8 / 12., 0, 4 / 12., 0}, 15.2);
  params = hot(1.0f, 8);
  params.top_p = 0.8f;  // 8 + 4 are 0.75, so the third is kept too
  expect_distribution(row, params, {2 / 14., 8 / 14., 0, 4 / 14., 0}, 18.5);
  params = hot(1.0f, 9);
  params.min_p = 0.2f;
  expect_distribution(row, params, {2 / 14., 8 / 14., 0, 4 / 14., 0}, 18.5);
  params = hot(1.0f, 10);
  params.top_k = 3;
  params.top_p = 0.85f;  // of the first three: 12 / 14 = 0.857
  expect_distribution(row, params, {0, 8 / 12., 0, 4 / 12., 0}, 15.2);
}

TEST(Sample, SeedAndCounterDecide) {
  const SampleDesc desc{64, 64};
  Random random(23);
  Tensor logits(DType::kF32, 200, 64);
  logits.fill([](int64_t, int64_t) { return 0.0f; });
  std::vector<SampleParams> params;
  for (uint64_t i = 0; i < 200; ++i) params.push_back(hot(1.0f, i / 100, i % 100));
  for (const auto name : kRows) {
    const auto results = run(name, desc, logits, params);
    for (size_t i = 0; i < 200; ++i) {  // flat: the token is floor(64 u)
      EXPECT_EQ(results[i].token, static_cast<int32_t>(64 * sample_uniform(params[i].seed, params[i].counter))) << name;
    }
  }
}

TEST(Sample, TargetIsScored) {
  const SampleDesc desc{6, 5};
  SampleParams params = hot(0.3f);
  params.target = 3;
  params.top_logprobs = 2;
  const std::vector<float> row = {1.0f, 2.0f, 4.0f, -1.0f, 4.0f, 6.0f};
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  for (const auto name : kRows) {
    const auto result = run(name, desc, logits_of({row}), {params})[0];
    EXPECT_EQ(result.token, 3);
    EXPECT_NEAR(result.logprob, -1 - std::log(sum), 1e-6) << name;
    ASSERT_EQ(result.top_count, 2);
    EXPECT_EQ(result.top_ids[0], 2);
    EXPECT_EQ(result.top_ids[1], 4);
    EXPECT_NEAR(result.top_logprobs[1], 4 - std::log(sum), 1e-6) << name;
  }
}

TEST(Sample, WrongLogitsAreNumericalErrors) {
  const SampleDesc desc{1500, 1400};
  const std::vector<float> good(1500, 1.0f);
  std::vector<float> nan = good, infinite = good, padding_nan = good, none(1500, -INFINITY), one = none;
  nan[1200] = NAN;
  infinite[3] = INFINITY;
  padding_nan[1499] = -NAN;
  none[1450] = 1.0f;  // padding alone does not help
  one[1399] = -5.0f;
  const Tensor logits = logits_of({good, nan, infinite, padding_nan, none, one});
  for (const auto name : kRows) {
    for (const float temperature : {0.0f, 1.0f}) {
      uint32_t flag = 0;
      SampleParams params = hot(temperature);
      params.top_logprobs = 1;
      const auto results = run(name, desc, logits, std::vector<SampleParams>(6, params), 2, &flag);
      EXPECT_EQ(flag, Sentinel::kNonFiniteLogits) << name;
      for (const size_t i : {1, 2, 3, 4}) {
        EXPECT_EQ(results[i].token, -1) << name << " " << i;
        EXPECT_EQ(results[i].numerical_error, 1) << name << " " << i;
      }
      EXPECT_EQ(results[0].numerical_error + results[5].numerical_error, 0) << name;
      EXPECT_EQ(results[5].token, 1399) << name;
      EXPECT_EQ(results[5].logprob, 0.0f) << name;
    }
    uint32_t flag = 0;
    run(name, desc, logits_of({good}), {SampleParams{}}, 1, &flag);
    EXPECT_EQ(flag, 0u) << name;
  }
}

TEST(Sample, RefusesWhatItCannotRun) {
  for (const auto& impl : SampleOp::impls()) {
    EXPECT_TRUE(impl.can_run({10, 11}, DeviceCaps{})) << impl.name;
    EXPECT_FALSE(impl.can_run({10, 10}, DeviceCaps{})) << impl.name;
  }
}

}  // namespace
}  // namespace assay::ops
