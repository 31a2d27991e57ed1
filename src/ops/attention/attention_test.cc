#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include "ops/testing_batch.h"

namespace assay::ops {
namespace {

using namespace testing;

constexpr double kU = 0x1p-24;  // unit roundoff of fp32

AttentionDesc make_desc(int32_t heads, int32_t kv_heads, int32_t head_dim, DType activation, DType cache) {
  AttentionDesc desc;
  desc.heads = heads;
  desc.kv_heads = kv_heads;
  desc.head_dim = head_dim;
  desc.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  desc.activation = activation;
  desc.cache = cache;
  return desc;
}

// Inputs of a step: q and gate come out of one matrix, as the model has them.
struct Inputs {
  Tensor q, gate;
  Inputs(const AttentionDesc& desc, int64_t tokens)
      : q(desc.activation, tokens, desc.heads * desc.head_dim),
        gate(desc.activation, tokens, 2 * desc.heads * desc.head_dim) {}
};

struct Outputs {
  Tensor out, lse;
  Outputs(const AttentionDesc& desc, int64_t tokens)
      : out(desc.activation, tokens, desc.heads * desc.head_dim), lse(DType::kF32, tokens, desc.heads) {}
  bool operator==(const Outputs&) const = default;
};

// Rows [first, first + batch.tokens()) of inputs and outputs.
void run(Cpu& cpu, std::string_view row, const AttentionDesc& desc, const TestBatch& batch, const Inputs& in,
         TestCache& cache, Outputs& out, int64_t first = 0) {
  AttentionOp::Args args;
  const int64_t count = batch.tokens();
  args.batch = batch.view();
  args.q = rows_of(in.q, first, count);
  if (desc.output_gate)
    args.gate = rows_of(in.gate, first, count).columns(desc.head_dim, in.gate.cols() - desc.head_dim);
  args.gate_stride = 2 * desc.head_dim;
  args.cache = cache.view();
  args.out = rows_of(out.out, first, count);
  args.lse = rows_of(out.lse, first, count);
  cpu.prepare<AttentionOp>(row, desc, batch.bucket()).run(args);
}

// Keys and values for positions [0, tokens) of a sequence.
void fill_cache(Random& random, TestCache& cache, const std::vector<int32_t>& pages, int32_t tokens, float scale) {
  const KvCacheView view = cache.view();
  for (int32_t p = 0; p < tokens; ++p) {
    for (int32_t h = 0; h < view.kv_heads; ++h) {
      const int64_t at = view.offset(pages[static_cast<size_t>(p / view.page_tokens)], h, p % view.page_tokens);
      for (int32_t d = 0; d < view.head_dim; ++d) cache.set(at + d, scale * random.normal(), random.normal());
    }
  }
}

std::vector<const char*> rows_of(const AttentionDesc& desc) {
  return testing::cpu_rows<AttentionOp>(desc, Cpu().device().caps());
}

// What bounds the error of one output: the largest |score|, sum |q||k| * scale and |v| a head sees.
struct Size {
  double score = 0;
  double value = 0;
};

Size size_of(const AttentionDesc& desc, const TestBatch& batch, const Inputs& in, TestCache& cache, int64_t token,
             int32_t head) {
  const BatchView view = batch.view();
  Size size;
  for (int32_t p = 0; p <= view.positions[token]; ++p) {
    const int32_t page_tokens = cache.view().page_tokens;
    const int64_t page = view.page_table[view.sequence_of[token] * view.page_table_stride + p / page_tokens];
    const int64_t at = cache.view().offset(page, head / (desc.heads / desc.kv_heads), p % page_tokens);
    double sum = 0;
    for (int32_t d = 0; d < desc.head_dim; ++d) {
      sum += std::abs(in.q.at(token, head * desc.head_dim + d) * cache.k(at + d));
      size.value = std::max(size.value, std::abs(cache.v(at + d)));
    }
    size.score = std::max(size.score, desc.scale * sum);
  }
  return size;
}

// A score is off by e_s = (dim / 8 + 6) u * size.score, so a weight by a factor within e^(2 e_s), plus 4 u of the
// exponential and the subtraction's u * |score|. Weights and products are summed by runs of 64 with at most
// 64 + 3 roundings a block, and one rescaling by an inexact factor (5 u) a block later. Numerator and total double
// that.
double weight_error(const AttentionDesc& desc, int32_t position, const Size& size) {
  const double blocks = position / 64 + 1;
  return 2 * ((desc.head_dim / 8.0 + 7) * kU * size.score + (67 + 6 * blocks) * kU);
}

void compare(const AttentionDesc& desc, const std::vector<std::pair<int32_t, int32_t>>& spans, int32_t page_tokens,
             float key_scale, uint64_t seed) {
  Cpu cpu(2);
  Random random(seed);
  TestCache cache(random, desc.cache, 80, page_tokens, desc.kv_heads, desc.head_dim);
  std::vector<SequenceStep> steps;
  for (const auto& [position, tokens] : spans) {
    steps.push_back({position, tokens, cache.pages_for(position + tokens)});
    fill_cache(random, cache, steps.back().pages, position + tokens, key_scale);
  }
  const TestBatch batch(steps);
  Inputs in(desc, batch.tokens());
  in.q.fill_normal(random);
  in.gate.fill_normal(random, 3.0f);
  Outputs wanted(desc, batch.tokens());
  run(cpu, "reference", desc, batch, in, cache, wanted);
  std::map<OrderId, Outputs> by_order;
  for (const char* row : rows_of(desc)) {
    Outputs out(desc, batch.tokens());
    run(cpu, row, desc, batch, in, cache, out);
    EXPECT_TRUE(out.out.guards_intact() && out.lse.guards_intact());
    EXPECT_TRUE(by_order.try_emplace(row_named<AttentionOp>(row).order(desc), out).first->second == out) << row;
    for (int64_t token = 0; token < batch.tokens(); ++token) {
      for (int32_t head = 0; head < desc.heads; ++head) {
        const Size size = size_of(desc, batch, in, cache, token, head);
        const double error = weight_error(desc, batch.view().positions[token], size);
        ASSERT_NEAR(out.lse.at(token, head), wanted.lse.at(token, head),
                    error + 3 * kU * std::abs(wanted.lse.at(token, head)));
        for (int32_t d = 0; d < desc.head_dim; ++d) {
          const int64_t col = head * desc.head_dim + d;
          const double fp32 = (error + 8 * kU) * size.value;
          const double rounding =
              desc.activation == DType::kBf16 ? ulp(DType::kBf16, std::abs(wanted.out.at(token, col)) + fp32) : 0;
          ASSERT_NEAR(out.out.at(token, col), wanted.out.at(token, col), fp32 + rounding)
              << row << " " << token << " " << col;
        }
      }
    }
  }
}

TEST(Attention, MatchesReference) {
  uint64_t seed = 1;
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    for (const DType cache : {DType::kF32, DType::kBf16}) {
      for (const int32_t group : {1, 2, 8}) {
        for (const int32_t page_tokens : {16, 64}) {
          AttentionDesc desc = make_desc(2 * group, 2, 16, activation, cache);
          desc.output_gate = page_tokens == 16;
          compare(desc, {{0, 1}, {0, 70}, {63, 1}, {64, 1}, {130, 5}, {299, 1}}, page_tokens, 1.0f, seed++);
        }
      }
    }
  }
}

TEST(Attention, MatchesReferenceAtTheModelsShape) {
  compare(make_desc(16, 2, 256, DType::kBf16, DType::kBf16), {{60, 10}, {200, 1}}, 64, 1.0f, 31);
  compare(make_desc(6, 2, 40, DType::kF32, DType::kF32), {{0, 20}, {127, 2}}, 16, 1.0f, 32);
}

TEST(Attention, LargeScores) {  // weights that underflow, and a largest score that keeps moving
  compare(make_desc(4, 2, 16, DType::kF32, DType::kF32), {{0, 40}, {250, 20}}, 16, 40.0f, 41);
}

TEST(Attention, EveryContextLength) {
  compare(make_desc(4, 1, 8, DType::kF32, DType::kBf16), {{0, 300}}, 16, 1.0f, 51);
  compare(make_desc(4, 1, 16, DType::kF32, DType::kBf16), {{0, 300}}, 16, 1.0f, 52);
}

// A worked case: one key decides, or two keys share.
TEST(Attention, WorkedNumbers) {
  Cpu cpu;
  Random random(1);
  AttentionDesc desc = make_desc(1, 1, 16, DType::kF32, DType::kF32);
  desc.scale = 0.5f;
  TestCache cache(random, DType::kF32, 1, 16, 1, 16);
  for (int32_t d = 0; d < 16; ++d) {
    cache.set(d, 0.0f, 1.0f);
    cache.set(16 + d, d == 0 ? 2.0f : 0.0f, 3.0f);
  }
  const TestBatch batch({{1, 1, {0}}});
  Inputs in(desc, 1);
  in.q.fill([](int64_t, int64_t col) { return col == 0 ? 3.0f : 7.0f; });
  in.gate.fill([](int64_t, int64_t) { return 0.5f; });
  // scores 0 and 0.5 * 6 = 3: weights 1 and e^3
  const double wanted = (1 + 3 * std::exp(3.0)) / (1 + std::exp(3.0)) / (1 + std::exp(-0.5));
  for (const char* row : rows_of(desc)) {
    Outputs out(desc, 1);
    run(cpu, row, desc, batch, in, cache, out);
    EXPECT_NEAR(out.out.at(0, 5), wanted, 1e-6) << row;
    EXPECT_NEAR(out.lse.at(0, 0), std::log(1 + std::exp(3.0)), 1e-6) << row;
  }
}

TEST(Attention, ScalesOfTheCacheMultiply) {
  Cpu cpu;
  Random random(2);
  AttentionDesc desc = make_desc(2, 1, 16, DType::kF32, DType::kF32);
  desc.output_gate = false;
  TestCache cache(random, DType::kF32, 1, 16, 1, 16);
  fill_cache(random, cache, {0}, 9, 1.0f);
  Inputs in(desc, 1);
  in.q.fill_normal(random);
  const TestBatch batch({{8, 1, {0}}});
  for (const char* row : rows_of(desc)) {
    Outputs plain(desc, 1), scaled(desc, 1);
    AttentionDesc quarter = desc;
    quarter.scale = desc.scale / 4;
    run(cpu, row, desc, batch, in, cache, plain);
    AttentionOp::Args args{batch.view(), in.q.view(), {}, 0, cache.view(), scaled.out.view(), {}};
    args.cache.k_scale = 4.0f;
    args.cache.v_scale = 0.5f;
    cpu.prepare<AttentionOp>(row, quarter, batch.bucket()).run(args);
    for (int32_t d = 0; d < 32; ++d) EXPECT_NEAR(scaled.out.at(0, d), plain.out.at(0, d) / 2, 1e-6);
  }
}

// One sequence of 150 tokens: whole, cut, and token by token; alone and in a batch; 1 to 3 threads; pages of 16 and 64.
TEST(Attention, NothingButPositionDecidesTheBits) {
  for (const int32_t group : {1, 2, 3, 8}) {
    const AttentionDesc desc = make_desc(2 * group, 2, 48, DType::kF32, DType::kBf16);
    std::map<std::string_view, Outputs> first;  // by row
    for (const int32_t page_tokens : {16, 64}) {
      Random random(7);
      std::vector<float> numbers(150 * 2 * 48 * 2);
      for (float& number : numbers) number = random.normal();
      TestCache cache(random, desc.cache, 40, page_tokens, 2, 48);
      const auto pages = cache.pages_for(150);
      size_t next = 0;
      for (int32_t p = 0; p < 150; ++p) {
        for (int32_t h = 0; h < 2; ++h) {
          const int64_t at = cache.view().offset(pages[static_cast<size_t>(p / page_tokens)], h, p % page_tokens);
          for (int32_t d = 0; d < 48; ++d, next += 2) cache.set(at + d, numbers[next], numbers[next + 1]);
        }
      }
      const auto other = cache.pages_for(90);
      fill_cache(random, cache, other, 90, 1.0f);
      Random same(8);
      Inputs in(desc, 150);
      in.q.fill_normal(same);
      in.gate.fill_normal(same);

      for (const char* row : rows_of(desc)) {
        Cpu one(1);
        Outputs whole(desc, 150);
        run(one, row, desc, TestBatch({{0, 150, pages}}), in, cache, whole);
        EXPECT_TRUE(first.try_emplace(row, whole).first->second == whole);
        for (const int threads : {2, 3}) {
          Cpu more(threads);
          Outputs again(desc, 150);
          run(more, row, desc, TestBatch({{0, 150, pages}}), in, cache, again);
          EXPECT_TRUE(again == whole);
        }
        for (const std::vector<int32_t>& cuts :
             {std::vector<int32_t>{64, 64, 22}, {1, 2, 61, 5, 81}, std::vector<int32_t>(150, 1)}) {
          Outputs pieces(desc, 150);
          int32_t position = 0;
          for (const int32_t count : cuts) {
            run(one, row, desc, TestBatch({{position, count, pages}}), in, cache, pieces, position);
            position += count;
          }
          EXPECT_TRUE(pieces == whole);
        }
        // in a batch between two others; its queries are rows 3 .. 42 of the step
        Cpu two(2);
        Inputs mixed_in(desc, 3 + 40 + 1);
        mixed_in.q.fill([&](int64_t row, int64_t col) { return static_cast<float>(in.q.at(row + 97, col)); });
        mixed_in.gate.fill([&](int64_t row, int64_t col) { return static_cast<float>(in.gate.at(row + 97, col)); });
        Outputs mixed(desc, 44);
        run(two, row, desc, TestBatch({{20, 3, other}, {100, 40, pages}, {89, 1, other}}), mixed_in, cache, mixed);
        for (int64_t row = 3; row < 43; ++row) {
          for (int64_t col = 0; col < mixed.out.cols(); ++col)
            ASSERT_EQ(mixed.out.at(row, col), whole.out.at(row + 97, col));
        }
      }
    }
  }
}

TEST(Attention, PoisonAfterThePositionIsNotRead) {
  Cpu cpu;
  Random random(9);
  const AttentionDesc desc = make_desc(4, 2, 16, DType::kBf16, DType::kBf16);
  TestCache cache(random, DType::kBf16, 8, 16, 2, 16);
  const auto pages = cache.pages_for(70);
  fill_cache(random, cache, pages, 67, 1.0f);  // positions 67.. stay NaN
  Inputs in(desc, 40);
  in.q.fill_normal(random);
  in.gate.fill_normal(random);
  for (const char* row : rows_of(desc)) {
    Outputs out(desc, 40);
    run(cpu, row, desc, TestBatch({{27, 40, pages}}), in, cache, out);
    for (int64_t token = 0; token < 40; ++token) {
      for (int64_t col = 0; col < out.out.cols(); ++col) ASSERT_TRUE(std::isfinite(out.out.at(token, col)));
    }
  }
}

TEST(Attention, NaNInTheContextShows) {
  Cpu cpu;
  Random random(10);
  const AttentionDesc desc = make_desc(2, 1, 16, DType::kF32, DType::kF32);
  TestCache cache(random, DType::kF32, 2, 16, 1, 16);
  fill_cache(random, cache, {0, 1}, 20, 1.0f);
  cache.set(5 * 16 + 3, NAN, 0.0f);  // key of position 5
  Inputs in(desc, 20);
  in.q.fill_normal(random);
  in.gate.fill_normal(random);
  for (const char* row : rows_of(desc)) {
    Outputs out(desc, 20);
    run(cpu, row, desc, TestBatch({{0, 20, {0, 1}}}), in, cache, out);
    EXPECT_TRUE(std::isfinite(out.out.at(4, 0))) << row;
    EXPECT_TRUE(std::isnan(out.out.at(5, 0))) << row;
    EXPECT_TRUE(std::isnan(out.out.at(19, 31))) << row;
  }
}

TEST(Attention, RefusesWhatItCannotRun) {
  const DeviceCaps caps;
  AttentionDesc desc = make_desc(4, 3, 16, DType::kF32, DType::kF32);
  for (const auto& impl : AttentionOp::impls()) EXPECT_TRUE(impl.can_run(desc, caps)) << impl.name;
  desc = make_desc(4, 2, 12, DType::kF32, DType::kF32);
  EXPECT_TRUE(row_named<AttentionOp>("cpu_portable").can_run(desc, caps));
  EXPECT_FALSE(row_named<AttentionOp>("reference").can_run(desc, caps));
  desc = make_desc(4, 2, 16, DType::kF32, DType::kF32);
  DeviceCaps wide;
  wide.cpu.avx2 = wide.cpu.avx512 = true;
  for (const char* row : {"cpu_avx2", "cpu_avx512"}) {
    EXPECT_TRUE(row_named<AttentionOp>(row).can_run(desc, caps)) << row;
    EXPECT_FALSE(row_named<AttentionOp>(row).can_run(desc, wide)) << row;
    EXPECT_TRUE(row_named<AttentionOp>(row).can_run(make_desc(4, 2, 24, DType::kF32, DType::kF32), wide)) << row;
  }
}

}  // namespace
}  // namespace assay::ops
