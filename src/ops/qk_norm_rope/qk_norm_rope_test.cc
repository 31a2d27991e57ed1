#include "ops/qk_norm_rope/qk_norm_rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "ops/testing_batch.h"

namespace assay::ops {
namespace {

using namespace testing;

constexpr double kU = 0x1p-24;  // unit roundoff of fp32

struct Case {
  QkNormRopeDesc desc;
  WeightId q_norm, k_norm;
  int64_t q_width() const { return desc.head_dim * (desc.output_gate ? 2 : 1); }
  int64_t columns() const { return desc.heads * q_width() + 2 * desc.kv_heads * desc.head_dim; }
};

Case make_case(Cpu& cpu, Random& random, QkNormRopeDesc desc, WeightFormat format = WeightFormat::kBf16) {
  Case made{desc, WeightId::kNone, WeightId::kNone};
  made.q_norm = cpu.weights().add(random_matrix(random, format, 1, desc.head_dim, 0.3f));
  made.k_norm = cpu.weights().add(random_matrix(random, format, 1, desc.head_dim, 0.3f));
  return made;
}

QkNormRopeDesc small(DType activation = DType::kF32, DType cache = DType::kF32) {
  QkNormRopeDesc desc;
  desc.heads = 4;
  desc.kv_heads = 2;
  desc.head_dim = 32;
  desc.rotary_dim = 8;
  desc.theta = 1e7;
  desc.activation = activation;
  desc.cache = cache;
  return desc;
}

void run(Cpu& cpu, std::string_view row, const Case& c, const TestBatch& batch, const ConstView& qkv, const View& q,
         TestCache& cache, Sentinel* flags = nullptr, int layer = 0) {
  const auto ready = cpu.prepare<QkNormRopeOp>(row, c.desc, batch.bucket(), {c.q_norm, c.k_norm});
  ready.run({batch.view(), qkv, q, cache.view()}, nullptr, flags, layer);
}

// The formula once more, by complex numbers: head [head_dim] of the row's q or k, in double.
std::vector<double> by_complex_rotation(const Case& c, const std::vector<double>& weight, const Tensor& qkv,
                                        int64_t token, int64_t first, int32_t position) {
  const int32_t dim = c.desc.head_dim;
  std::vector<double> x(static_cast<size_t>(dim));
  double squares = 0;
  for (int32_t d = 0; d < dim; ++d) squares += std::pow(qkv.at(token, first + d), 2);
  const double scale = 1 / std::sqrt(squares / dim + c.desc.eps);
  for (int32_t d = 0; d < dim; ++d) {
    x[static_cast<size_t>(d)] = qkv.at(token, first + d) * scale * (1 + weight[static_cast<size_t>(d)]);
  }
  const size_t half = static_cast<size_t>(c.desc.rotary_dim) / 2;
  for (size_t i = 0; i < half; ++i) {
    const float frequency = static_cast<float>(
        std::pow(c.desc.theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.desc.rotary_dim)));
    const float angle = static_cast<float>(position) * frequency;
    const auto turned = std::complex<double>(x[i], x[i + half]) * std::polar(1.0, static_cast<double>(angle));
    x[i] = turned.real();
    x[i + half] = turned.imag();
  }
  return x;
}

std::vector<const char*> rows(const QkNormRopeDesc& desc) {
  Cpu cpu;
  return testing::cpu_rows<QkNormRopeOp>(desc, cpu.device().caps());
}

// Portable against the exact value of an element with partner b in the rotation: the mean of squares is off by
// (dim / 8 + 5) roundings and counts half, then root, division, gain, products, cosine and sum: at most 10 more, each
// of |a| + |b|. A bf16 result may differ by one step when the exact value is near the middle of two.
double bound(const Case& c, DType stored, double a, double b) {
  const double fp32 = (c.desc.head_dim / 16.0 + 13) * kU * (std::abs(a) + std::abs(b));
  return fp32 + (stored == DType::kBf16 ? ulp(DType::kBf16, std::abs(a) + fp32) : 0);
}

void compare(const QkNormRopeDesc& desc, WeightFormat format, int32_t page_tokens, uint64_t seed) {
  Cpu cpu(2);
  Random random(seed);
  const Case c = make_case(cpu, random, desc, format);
  TestCache cache(random, desc.cache, 40, page_tokens, desc.kv_heads, desc.head_dim);
  const TestBatch batch({{5, 1, cache.pages_for(6)}, {0, 37, cache.pages_for(37)}, {63, 3, cache.pages_for(66)}});
  TestCache reference_cache = cache;
  Tensor qkv(desc.activation, batch.tokens(), c.columns());
  qkv.fill_normal(random, 2.0f);
  for (int64_t col = 0; col < c.columns(); ++col) qkv.set(3, col, 1e-5f * random.normal());  // eps counts here
  Tensor q(desc.activation, batch.tokens(), desc.heads * desc.head_dim);
  Tensor q_reference = q;
  run(cpu, "cpu_portable", c, batch, qkv.view(), q.view(), cache);
  run(cpu, "reference", c, batch, qkv.view(), q_reference.view(), reference_cache);

  const BatchView view = batch.view();
  const int32_t half = desc.rotary_dim / 2;
  const auto q_weight = decoded(cpu.weights().source(c.q_norm).matrices[0]);
  const auto k_weight = decoded(cpu.weights().source(c.k_norm).matrices[0]);
  const auto partner = [&](int32_t d) { return d < half ? d + half : d < desc.rotary_dim ? d - half : d; };
  for (int64_t token = 0; token < batch.tokens(); ++token) {
    const int32_t position = view.positions[token];
    for (int32_t h = 0; h < desc.heads; ++h) {
      const auto exact = by_complex_rotation(c, q_weight, qkv, token, h * c.q_width(), position);
      for (int32_t d = 0; d < desc.head_dim; ++d) {
        const double wanted = exact[static_cast<size_t>(d)];
        const double other = exact[static_cast<size_t>(partner(d))];
        const int64_t col = h * desc.head_dim + d;
        ASSERT_NEAR(q_reference.at(token, col), wanted, ulp(desc.activation, wanted) / 2 + 1e-12);
        ASSERT_NEAR(q.at(token, col), q_reference.at(token, col), bound(c, desc.activation, wanted, other));
      }
    }
    const int64_t page = view.page_table[view.sequence_of[token] * view.page_table_stride + position / page_tokens];
    for (int32_t h = 0; h < desc.kv_heads; ++h) {
      const int64_t first = desc.heads * c.q_width() + h * desc.head_dim;
      const auto exact = by_complex_rotation(c, k_weight, qkv, token, first, position);
      const int64_t target = cache.view().offset(page, h, position % page_tokens);
      for (int32_t d = 0; d < desc.head_dim; ++d) {
        const double wanted = exact[static_cast<size_t>(d)];
        const double other = exact[static_cast<size_t>(partner(d))];
        ASSERT_NEAR(reference_cache.k(target + d), wanted, ulp(desc.cache, wanted) / 2 + 1e-12);
        ASSERT_NEAR(cache.k(target + d), reference_cache.k(target + d), bound(c, desc.cache, wanted, other));
        const double v = qkv.at(token, first + desc.kv_heads * desc.head_dim + d);
        ASSERT_NEAR(reference_cache.v(target + d), v, ulp(desc.cache, v) / 2);
        ASSERT_EQ(cache.v(target + d), reference_cache.v(target + d));
      }
    }
  }
  EXPECT_TRUE(q.guards_intact());
}

TEST(QkNormRope, MatchesReferenceAndComplexRotation) {
  uint64_t seed = 1;
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    for (const DType cache : {DType::kF32, DType::kBf16}) {
      for (const bool gate : {true, false}) {
        QkNormRopeDesc desc = small(activation, cache);
        desc.output_gate = gate;
        compare(desc, gate ? WeightFormat::kBf16 : WeightFormat::kF32, gate ? 16 : 64, seed++);
      }
    }
  }
}

TEST(QkNormRope, OtherShapes) {
  QkNormRopeDesc desc = small();
  desc.head_dim = 20;  // no multiple of eight lanes
  desc.rotary_dim = 20;
  desc.heads = 3;
  desc.kv_heads = 3;
  desc.theta = 10000;
  compare(desc, WeightFormat::kF16, 16, 11);
  desc.rotary_dim = 0;
  compare(desc, WeightFormat::kF32, 16, 12);
  desc = small();
  desc.heads = 8;
  desc.kv_heads = 1;
  desc.head_dim = 256;
  desc.rotary_dim = 64;
  compare(desc, WeightFormat::kBf16, 64, 13);
}

TEST(QkNormRope, FarPositions) {
  Cpu cpu;
  Random random(5);
  const Case c = make_case(cpu, random, small());
  for (const int32_t position : {0, 1, 63, 64, 4095, 65537, 131071, 200000}) {
    TestCache cache(random, DType::kF32, 2, position + 1, 2, 32);  // one page that reaches there
    const TestBatch batch({{position, 1, {1}}});
    Tensor qkv(DType::kF32, 1, c.columns());
    qkv.fill_normal(random);
    for (const auto row : rows(c.desc)) {
      Tensor q(DType::kF32, 1, 4 * 32);
      run(cpu, row, c, batch, qkv.view(), q.view(), cache);
      const auto weight = decoded(cpu.weights().source(c.q_norm).matrices[0]);
      const auto exact = by_complex_rotation(c, weight, qkv, 0, 0, position);
      for (int32_t d = 0; d < 32; ++d) {
        const double other = exact[static_cast<size_t>(d < 4 ? d + 4 : d < 8 ? d - 4 : d)];
        EXPECT_NEAR(q.at(0, d), exact[static_cast<size_t>(d)],
                    bound(c, DType::kF32, exact[static_cast<size_t>(d)], other));
      }
    }
  }
}

// Their order ids are equal. Heads and rotations with a rest beyond sixteens, and a value that is no number.
TEST(QkNormRope, InstructionSetsAgreeBitForBit) {
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    for (const DType stored : {DType::kF32, DType::kBf16}) {
      for (const int32_t rotary_dim : {0, 8, 42, 64}) {
        QkNormRopeDesc desc = small(activation, stored);
        desc.head_dim = 74;
        desc.rotary_dim = rotary_dim;
        Cpu cpu;
        Random random(8);
        const Case c = make_case(cpu, random, desc);
        TestCache before(random, stored, 256, 16, 2, 74);
        const TestBatch batch({{5, 3, before.pages_for(8)}, {3000, 16, before.pages_for(3016)}});
        Tensor qkv(activation, 19, c.columns());
        qkv.fill_normal(random);
        qkv.set(1, c.columns() - 1, NAN);
        Tensor wanted(activation, 19, 4 * 74);
        TestCache wanted_cache = before;
        run(cpu, "cpu_portable", c, batch, qkv.view(), wanted.view(), wanted_cache);
        for (const std::string_view row : rows(desc)) {
          if (row == "reference") continue;
          Tensor q(activation, 19, 4 * 74);
          TestCache cache = before;
          run(cpu, row, c, batch, qkv.view(), q.view(), cache);
          EXPECT_TRUE(q == wanted && cache == wanted_cache) << row << " " << describe(desc);
        }
      }
    }
  }
}

TEST(QkNormRope, BatchAndThreadsDoNotMatter) {
  Tensor first(DType::kBf16, 0, 0);
  for (const int threads : {1, 2, 3}) {
    Cpu cpu(threads);
    Random same(9);
    const Case c = make_case(cpu, same, small(DType::kBf16, DType::kBf16));
    TestCache cache(same, DType::kBf16, 8, 16, 2, 32);
    const auto pages = cache.pages_for(20);
    const auto other_pages = cache.pages_for(12);
    TestCache alone_cache = cache;
    Tensor qkv(DType::kBf16, 25, c.columns());
    qkv.fill_normal(same);
    Tensor q(DType::kBf16, 25, 4 * 32);
    Tensor q_alone = q;
    run(cpu, "cpu_portable", c, TestBatch({{7, 5, other_pages}, {0, 20, pages}}), qkv.view(), q.view(), cache);
    run(cpu, "cpu_portable", c, TestBatch({{0, 20, pages}}), rows_of(std::as_const(qkv), 5, 20),
        rows_of(q_alone, 5, 20), alone_cache);
    run(cpu, "cpu_portable", c, TestBatch({{7, 5, other_pages}}), rows_of(std::as_const(qkv), 0, 5),
        rows_of(q_alone, 0, 5), alone_cache);
    EXPECT_TRUE(q == q_alone);
    EXPECT_TRUE(cache == alone_cache);
    if (threads == 1) first = q;
    EXPECT_TRUE(q == first);
  }
}

TEST(QkNormRope, SentinelSeesNonFiniteKeysAndValues) {
  Cpu cpu(2);
  Random random(3);
  const Case c = make_case(cpu, random, small(DType::kBf16, DType::kBf16));
  TestCache cache(random, DType::kBf16, 1, 16, 2, 32);
  const TestBatch batch({{0, 4, cache.pages_for(4)}});
  const int64_t first_k = 4 * c.q_width();
  for (const auto row : rows(c.desc)) {
    const std::pair<int64_t, bool> columns[] = {
        {-1, false}, {0, false}, {first_k + 40, true}, {first_k + 64 + 63, true}};
    for (const auto& [column, raised] : columns) {
      Tensor qkv(DType::kBf16, 4, c.columns());
      qkv.fill_normal(random);
      if (column >= 0) qkv.set(2, column, column == first_k + 40 ? NAN : INFINITY);
      Tensor q(DType::kBf16, 4, 4 * 32);
      uint32_t words[3] = {0, 0, 0};
      Sentinel flags{words};
      run(cpu, row, c, batch, qkv.view(), q.view(), cache, &flags, 1);
      EXPECT_EQ(words[1], raised ? Sentinel::kNonFiniteKv : 0u) << row << " " << column;
      EXPECT_EQ(words[0] | words[2], 0u);
    }
  }
}

TEST(QkNormRope, ScalesOfTheCacheDivide) {
  Cpu cpu;
  Random random(4);
  const Case c = make_case(cpu, random, small());
  TestCache plain(random, DType::kF32, 1, 16, 2, 32);
  const TestBatch batch({{0, 2, {0}}});
  Tensor qkv(DType::kF32, 2, c.columns());
  qkv.fill_normal(random);
  Tensor q(DType::kF32, 2, 4 * 32);
  for (const auto row : rows(c.desc)) {
    TestCache scaled = plain;
    run(cpu, row, c, batch, qkv.view(), q.view(), plain);
    KvCacheView view = scaled.view();
    view.k_scale = 4.0f;
    view.v_scale = 0.5f;
    cpu.prepare<QkNormRopeOp>(row, c.desc, batch.bucket(), {c.q_norm, c.k_norm})
        .run({batch.view(), qkv.view(), q.view(), view});
    for (int64_t i = 0; i < 32; ++i) {
      EXPECT_EQ(scaled.k(i), plain.k(i) / 4);
      EXPECT_EQ(scaled.v(i), plain.v(i) * 2);
    }
  }
}

TEST(QkNormRope, RefusesWhatItCannotRun) {
  const DeviceCaps caps;
  QkNormRopeDesc desc = small();
  desc.rotary_dim = 34;
  for (const auto& impl : QkNormRopeOp::impls()) EXPECT_TRUE(impl.can_run(desc, caps)) << impl.name;
  desc = small();
  desc.cache = DType::kF8E4M3;
  for (const auto& impl : QkNormRopeOp::impls()) EXPECT_TRUE(impl.can_run(desc, caps)) << impl.name;
}

TEST(QkNormRope, AWeightOfWrongSizeIsAnError) {
  Cpu cpu;
  Random random(6);
  const WeightId wrong = cpu.weights().add(random_matrix(random, WeightFormat::kBf16, 1, 31));
  MakeContext context = cpu.context();
  for (const auto& impl : QkNormRopeOp::impls()) {
    const auto made = impl.make(small(), {1, 1}, {wrong, wrong}, context);
    ASSERT_FALSE(made.ok()) << impl.name;
    EXPECT_EQ(made.error().kind, ErrorKind::kCheckpoint);
  }
}

}  // namespace
}  // namespace assay::ops
