#include "ops/conv_gates/conv_gates.h"

#include <gtest/gtest.h>

#include "ops/testing_batch.h"

namespace assay::ops {
namespace {

using namespace testing;

constexpr double kU = 0x1p-24;  // unit roundoff of fp32

ConvGatesDesc make_desc(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim,
                        DType activation = DType::kF32, int32_t width = 4) {
  return {key_heads, value_heads, key_dim, value_dim, width, activation};
}

struct Weights {
  ConvGatesOp::Weights ids;
  std::vector<double> conv, a_log, dt_bias;
};

Weights add_weights(Cpu& cpu, OwnedMatrix conv, OwnedMatrix a_log, OwnedMatrix dt_bias) {
  Weights w;
  w.conv = decoded(conv.matrix);
  w.a_log = decoded(a_log.matrix);
  w.dt_bias = decoded(dt_bias.matrix);
  w.ids = {cpu.weights().add(std::move(conv)), cpu.weights().add(std::move(a_log)),
           cpu.weights().add(std::move(dt_bias))};
  return w;
}

Weights random_weights(Cpu& cpu, Random& random, const ConvGatesDesc& desc, WeightFormat format) {
  OwnedMatrix conv = random_matrix(random, format, desc.channels(), desc.width, 0.5f);
  OwnedMatrix a_log = random_matrix(random, WeightFormat::kF32, 1, desc.value_heads, 1.5f);
  return add_weights(cpu, std::move(conv), std::move(a_log), random_matrix(random, format, 1, desc.value_heads, 2.0f));
}

struct Inputs {
  Tensor qkv, a, b;
  Inputs(const ConvGatesDesc& desc, int64_t tokens)
      : qkv(desc.activation, tokens, desc.channels()),
        a(desc.activation, tokens, desc.value_heads),
        b(desc.activation, tokens, desc.value_heads) {}
};

Inputs random_inputs(Random& random, const ConvGatesDesc& desc, int64_t tokens) {
  Inputs in(desc, tokens);
  in.qkv.fill_normal(random, 2.0f);
  in.a.fill_normal(random, 4.0f);
  in.b.fill_normal(random, 4.0f);
  return in;
}

struct Outputs {
  Tensor q, k, v, g, beta;
  Outputs(const ConvGatesDesc& desc, int64_t tokens)
      : q(DType::kF32, tokens, desc.key_heads * desc.key_dim),
        k(DType::kF32, tokens, desc.key_heads * desc.key_dim),
        v(desc.activation, tokens, desc.value_heads * desc.value_dim),
        g(DType::kF32, tokens, desc.value_heads),
        beta(DType::kF32, tokens, desc.value_heads) {}
  bool operator==(const Outputs&) const = default;
  bool guards_intact() const {
    return q.guards_intact() && k.guards_intact() && v.guards_intact() && g.guards_intact() && beta.guards_intact();
  }
};

TestState make_state(const ConvGatesDesc& desc, int64_t slots) {
  return TestState(desc.activation, slots, desc.channels() * (desc.width - 1), 1);
}

void run(Cpu& cpu, std::string_view row, const ConvGatesDesc& desc, const Weights& weights, const TestBatch& batch,
         const Inputs& in, TestState& state, Outputs& out, int64_t first = 0, Sentinel* flags = nullptr) {
  const int64_t n = batch.tokens();
  cpu.prepare<ConvGatesOp>(row, desc, batch.bucket(), weights.ids)
      .run({batch.view(), rows_of(in.qkv, first, n), rows_of(in.a, first, n), rows_of(in.b, first, n), state.view(),
            rows_of(out.q, first, n), rows_of(out.k, first, n), rows_of(out.v, first, n), rows_of(out.g, first, n),
            rows_of(out.beta, first, n)},
           nullptr, flags, 0);
}

// The formula once more in double, with bounds on what two rows may differ by.
struct Model {
  const ConvGatesDesc& desc;
  const Weights& weights;
  const TestBatch& batch;
  const Inputs& in;
  const TestState& before;

  struct Value {
    double exact;  // before rounding to the activation dtype
    double bound;  // of the rounded value: fp32 errors, and a step of bf16 where those change the rounding
  };

  double input(int64_t token, int64_t back, int64_t channel) const {
    const BatchView view = batch.view();
    const int32_t sequence = view.sequence_of[token];
    const int64_t index = token - view.query_start[sequence] - back;
    if (index >= 0) return in.qkv.at(token - back, channel);
    if (view.state_read[sequence] < 0) return 0;
    return before.conv.at(view.state_read[sequence], channel * (desc.width - 1) + desc.width - 1 + index);
  }

  // Sum over taps: width + 1 roundings of the terms' sizes; silu is steeper than 1 by at most a tenth; exp, quotient
  // and sum 8 u of the result.
  Value y(int64_t token, int64_t channel) const {
    double sum = 0, size = 0;
    for (int32_t j = 0; j < desc.width; ++j) {
      const double term =
          weights.conv[static_cast<size_t>(channel * desc.width + j)] * input(token, desc.width - 1 - j, channel);
      sum += term;
      size += std::abs(term);
    }
    const double exact = sum / (1 + std::exp(-sum));
    const double fp32 = 1.1 * (desc.width + 1) * kU * size + 8 * kU * std::abs(exact) + 1e-36;
    return {exact, fp32 + ulp(desc.activation, std::abs(exact) + fp32)};
  }

  // Element i of a head of q or k whose channels start at `first`: the error of y_i itself, and that of the norm.
  Value normed(int64_t token, int64_t first, int64_t i, double factor) const {
    double squares = 0, errors = 0;
    for (int64_t c = first; c < first + desc.key_dim; ++c) {
      const Value value = y(token, c);
      squares += value.exact * value.exact;
      errors += value.bound * value.bound;
    }
    const double norm = std::sqrt(squares + 1e-6);
    const Value own = y(token, first + i);
    const double exact = factor * own.exact / norm;
    const double bound =
        factor * own.bound / norm + std::abs(exact) * (std::sqrt(errors) / norm + (desc.key_dim / 8.0 + 8) * kU);
    return {exact, bound};
  }
};

std::vector<const char*> rows(const ConvGatesDesc& desc) {
  Cpu cpu;
  return testing::cpu_rows<ConvGatesOp>(desc, cpu.device().caps());
}

void compare(const ConvGatesDesc& desc, Cpu& cpu, const Weights& weights, const Inputs& in, const TestState& before,
             const TestBatch& batch) {
  const Model model{desc, weights, batch, in, before};
  for (const auto row : rows(desc)) {
    TestState state = before;
    Outputs out(desc, batch.tokens());
    run(cpu, row, desc, weights, batch, in, state, out);
    EXPECT_TRUE(out.guards_intact() && state.conv.guards_intact()) << row;
    const int64_t keys = int64_t{desc.key_heads} * desc.key_dim;
    for (int64_t token = 0; token < batch.tokens(); ++token) {
      for (int64_t i = 0; i < keys; ++i) {
        const int64_t head = i / desc.key_dim * desc.key_dim;
        const auto q = model.normed(token, head, i - head, 1 / std::sqrt(static_cast<double>(desc.key_dim)));
        const auto k = model.normed(token, keys + head, i - head, 1);
        ASSERT_NEAR(out.q.at(token, i), q.exact, q.bound) << row << " q " << token << " " << i;
        ASSERT_NEAR(out.k.at(token, i), k.exact, k.bound) << row << " k " << token << " " << i;
      }
      for (int64_t i = 0; i < out.v.cols(); ++i) {
        const auto v = model.y(token, 2 * keys + i);
        ASSERT_NEAR(out.v.at(token, i), v.exact, v.bound) << row << " v " << token << " " << i;
      }
      for (int64_t head = 0; head < desc.value_heads; ++head) {
        const double x = in.a.at(token, head) + weights.dt_bias[static_cast<size_t>(head)];
        const double g = -std::exp(weights.a_log[static_cast<size_t>(head)]) * (x > 20 ? x : std::log1p(std::exp(x)));
        // x is rounded once, and the logarithm of softplus is no steeper than x; exp 4 u, log1p, rate and product 4 u
        ASSERT_NEAR(out.g.at(token, head), g, (std::abs(x) + 9) * kU * std::abs(g) + 1e-40) << row << " " << x;
        const double beta = 1 / (1 + std::exp(-in.b.at(token, head)));
        ASSERT_NEAR(out.beta.at(token, head), beta, 8 * kU * beta + 1e-36) << row;
      }
    }
    const BatchView view = batch.view();
    for (int32_t s = 0; s < view.sequences; ++s) {
      const int64_t last = view.query_start[s + 1] - 1;
      for (int64_t channel = 0; channel < desc.channels(); ++channel) {
        for (int32_t i = 0; i < desc.width - 1; ++i) {
          ASSERT_EQ(state.conv.at(view.state_write[s], channel * (desc.width - 1) + i),
                    model.input(last, desc.width - 2 - i, channel))
              << row << " sequence " << s << " channel " << channel;
        }
      }
    }
  }
}

TestState with_slots(Random& random, const ConvGatesDesc& desc, int64_t slots, std::initializer_list<int64_t> filled) {
  TestState state = make_state(desc, slots);
  for (const int64_t slot : filled) {
    for (int64_t i = 0; i < state.conv.cols(); ++i) state.conv.set(slot, i, 2.0f * random.normal());
  }
  return state;
}

TEST(ConvGates, MatchesTheFormula) {
  uint64_t seed = 1;
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    const ConvGatesDesc shapes[] = {make_desc(2, 2, 16, 16, activation),   make_desc(2, 4, 16, 8, activation),
                                    make_desc(1, 3, 20, 12, activation),   make_desc(2, 8, 8, 24, activation),
                                    make_desc(1, 1, 128, 128, activation), make_desc(1, 2, 5, 3, activation, 2),
                                    make_desc(1, 2, 8, 8, activation, 1),  make_desc(1, 2, 8, 8, activation, 6)};
    for (const ConvGatesDesc& desc : shapes) {
      Cpu cpu(2);
      Random random(seed);
      const Weights weights =
          random_weights(cpu, random, desc, seed % 2 == 0 ? WeightFormat::kBf16 : WeightFormat::kF32);
      const TestBatch batch(
          {{9, 1, {}, 1, 0}, {4, 2, {}, 1, 2}, {0, 2, {}, -1, 3}, {0, 12, {}, -1, 4}, {7, 3, {}, 5, 6}});
      compare(desc, cpu, weights, random_inputs(random, desc, batch.tokens()), with_slots(random, desc, 7, {1, 5}),
              batch);
      ++seed;
    }
  }
}

TEST(ConvGates, NearZeroKeysMeetTheEpsilonOfTheSum) {
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    const ConvGatesDesc desc = make_desc(2, 2, 16, 16, activation);
    Cpu cpu;
    Random random(61);
    const Weights weights = random_weights(cpu, random, desc, WeightFormat::kF32);
    const TestBatch batch({{0, 8, {}, -1, 0}});
    Inputs in = random_inputs(random, desc, 8);
    in.qkv.fill([&](int64_t token, int64_t) { return token == 5 ? 0.0f : 1e-3f * random.normal(); });
    compare(desc, cpu, weights, in, make_state(desc, 1), batch);
  }
  // one channel only: y / sqrt(y^2 + 1e-6), far from y / sqrt(y^2 / dim + 1e-6) and from y / max(|y|, eps)
  const ConvGatesDesc desc = make_desc(1, 1, 4, 4, DType::kF32, 1);
  Cpu cpu;
  const Weights weights = add_weights(cpu, encode(WeightFormat::kF32, 12, 1, std::vector<float>(12, 1.0f)),
                                      encode(WeightFormat::kF32, 1, 1, std::vector<float>{0.0f}),
                                      encode(WeightFormat::kF32, 1, 1, std::vector<float>{0.0f}));
  Inputs in(desc, 1);
  in.qkv.fill([](int64_t, int64_t channel) { return channel == 4 ? 2e-3f : 0.0f; });
  in.a.fill([](int64_t, int64_t) { return 0.0f; });
  in.b.fill([](int64_t, int64_t) { return 0.0f; });
  const double y = 2e-3 / (1 + std::exp(-2e-3));
  for (const auto row : rows(desc)) {
    TestState state = make_state(desc, 1);
    Outputs out(desc, 1);
    run(cpu, row, desc, weights, TestBatch({{0, 1, {}, -1, 0}}), in, state, out);
    EXPECT_NEAR(out.k.at(0, 0), y / std::sqrt(y * y + 1e-6), 1e-6) << row;
    EXPECT_EQ(out.k.at(0, 1), 0.0) << row;
    EXPECT_EQ(out.q.at(0, 0), 0.0) << row;
    EXPECT_NEAR(out.g.at(0, 0), -std::log(2.0), 1e-7) << row;
    EXPECT_EQ(out.beta.at(0, 0), 0.5) << row;
  }
}

TEST(ConvGates, ExtremeGates) {
  const ConvGatesDesc desc = make_desc(1, 4, 8, 8);
  Cpu cpu;
  Random random(71);
  const std::vector<float> dt_bias = {100.0f, 20.0f, 0.0f, -100.0f};
  const std::vector<float> a_log = {0.0f, 3.0f, -8.0f, 1.0f};
  const Weights weights =
      add_weights(cpu, random_matrix(random, WeightFormat::kBf16, desc.channels(), 4),
                  encode(WeightFormat::kBf16, 1, 4, a_log), encode(WeightFormat::kF32, 1, 4, dt_bias));
  const float values[] = {0.0f, 1e-6f, -1e-6f, -1e4f, 1e4f, 80.0f, -80.0f, 19.9999f, 20.0001f, 3.0f};
  Inputs in = random_inputs(random, desc, 10);
  in.a.fill([&](int64_t token, int64_t) { return values[token]; });
  in.b.fill([&](int64_t token, int64_t) { return values[9 - token]; });
  compare(desc, cpu, weights, in, make_state(desc, 1), TestBatch({{0, 10, {}, -1, 0}}));
}

// From slot to slot, each poisoned before it is written.
void run_pieces(Cpu& cpu, std::string_view row, const ConvGatesDesc& desc, const Weights& weights, const Inputs& in,
                const std::vector<int32_t>& cuts, TestState& final_state, Outputs& out) {
  TestState state = make_state(desc, 2);
  int32_t position = 0;
  int32_t slot = -1;
  for (const int32_t count : cuts) {
    const int32_t target = slot == 0 ? 1 : 0;
    for (int64_t i = 0; i < state.conv.cols(); ++i) state.conv.set(target, i, NAN);
    run(cpu, row, desc, weights, TestBatch({{position, count, {}, slot, target}}), in, state, out, position);
    position += count;
    slot = target;
  }
  for (int64_t i = 0; i < state.conv.cols(); ++i)
    final_state.conv.set(0, i, static_cast<float>(state.conv.at(slot, i)));
}

TEST(ConvGates, NeitherCutsNorThreadsMatter) {
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    const ConvGatesDesc desc = make_desc(2, 6, 12, 20, activation);
    for (const auto row : rows(desc)) {
      TestState whole_state = make_state(desc, 1);
      Outputs whole(desc, 40);
      for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        Random random(81);
        const Weights weights = random_weights(cpu, random, desc, WeightFormat::kBf16);
        const Inputs in = random_inputs(random, desc, 40);
        if (threads == 1) run_pieces(cpu, row, desc, weights, in, {40}, whole_state, whole);
        for (const auto& cuts : {std::vector<int32_t>{40}, {1, 2, 3, 5, 29}, {3, 37}, std::vector<int32_t>(40, 1)}) {
          TestState state = make_state(desc, 1);
          Outputs out(desc, 40);
          run_pieces(cpu, row, desc, weights, in, cuts, state, out);
          EXPECT_TRUE(out == whole) << row << " " << threads << " threads, " << cuts.size() << " pieces";
          EXPECT_TRUE(state == whole_state) << row;
        }
      }
    }
  }
}

// Their order ids are equal. Heads with a rest beyond sixteens; decode, a prompt's start and its next piece; a width
// other than 4.
TEST(ConvGates, InstructionSetsAgreeBitForBit) {
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    for (const int32_t width : {1, 2, 4, 5}) {
      const ConvGatesDesc desc = make_desc(2, 4, 37, 130, activation, width);
      Cpu cpu;
      Random random(85);
      const Weights weights = random_weights(cpu, random, desc, WeightFormat::kBf16);
      const Inputs in = random_inputs(random, desc, 13);
      const TestBatch batch({{30, 1, {}, 0, 1}, {0, 9, {}, -1, 2}, {2, 3, {}, 3, 4}});
      const TestState before = with_slots(random, desc, 5, {0, 3});
      TestState wanted_state = before;
      Outputs wanted(desc, 13);
      run(cpu, "cpu_portable", desc, weights, batch, in, wanted_state, wanted);
      for (const std::string_view row : rows(desc)) {
        if (row == "reference") continue;
        TestState state = before;
        Outputs out(desc, 13);
        run(cpu, row, desc, weights, batch, in, state, out);
        EXPECT_TRUE(out == wanted && state == wanted_state) << row << " " << describe(desc);
      }
    }
  }
}

TEST(ConvGates, ABatchIsItsSequencesAlone) {
  const ConvGatesDesc desc = make_desc(2, 4, 16, 24, DType::kBf16);
  Cpu cpu(2);
  Random random(91);
  const Weights weights = random_weights(cpu, random, desc, WeightFormat::kF16);
  const Inputs in = random_inputs(random, desc, 15);
  TestState together = with_slots(random, desc, 6, {0, 4});
  const TestState before = together;
  TestState alone = together;
  const std::vector<SequenceStep> steps = {{3, 1, {}, 0, 1}, {0, 0, {}, 4, 5}, {9, 4, {}, 4, 3}, {0, 10, {}, -1, 2}};
  Outputs out(desc, 15);
  Outputs out_alone(desc, 15);
  run(cpu, "cpu_portable", desc, weights, TestBatch(steps), in, together, out);
  int64_t first = 0;
  for (const SequenceStep& step : steps) {
    run(cpu, "cpu_portable", desc, weights, TestBatch({step}), in, alone, out_alone, first);
    first += step.tokens;
  }
  EXPECT_TRUE(out == out_alone);
  EXPECT_TRUE(together == alone);
  for (int64_t i = 0; i < before.conv.cols(); ++i) {
    ASSERT_EQ(together.conv.at(0, i), before.conv.at(0, i));  // slots that are read are not written
    ASSERT_EQ(together.conv.at(4, i), before.conv.at(4, i));
    ASSERT_TRUE(std::isnan(together.conv.at(5, i)));  // no tokens: its slot is left alone
  }
}

TEST(ConvGates, SentinelSeesANonFiniteStoredInput) {
  const ConvGatesDesc desc = make_desc(1, 2, 8, 8, DType::kBf16);
  for (const auto row : rows(desc)) {
    for (const int64_t token : {-1, 1, 2, 4}) {  // the last three of five are stored
      Cpu cpu(2);
      Random random(101);
      const Weights weights = random_weights(cpu, random, desc, WeightFormat::kBf16);
      Inputs in = random_inputs(random, desc, 5);
      if (token >= 0) in.qkv.set(token, 17, token == 4 ? INFINITY : NAN);
      TestState state = make_state(desc, 1);
      Outputs out(desc, 5);
      uint32_t word = 0;
      Sentinel flags{&word};
      run(cpu, row, desc, weights, TestBatch({{0, 5, {}, -1, 0}}), in, state, out, 0, &flags);
      EXPECT_EQ(word, token >= 2 ? Sentinel::kNonFiniteState : 0u) << row << " " << token;
    }
  }
}

TEST(ConvGates, WeightsOfWrongSizeAreErrors) {
  const ConvGatesDesc desc = make_desc(1, 2, 8, 8);
  Cpu cpu;
  Random random(111);
  const WeightId vector = cpu.weights().add(random_matrix(random, WeightFormat::kBf16, 1, 2));
  const WeightId conv = cpu.weights().add(random_matrix(random, WeightFormat::kBf16, desc.channels(), 3));
  MakeContext context = cpu.context();
  for (const auto& impl : ConvGatesOp::impls()) {
    EXPECT_FALSE(impl.make(desc, {1, 1}, {conv, vector, vector}, context).ok()) << impl.name;
    EXPECT_TRUE(impl.can_run(make_desc(2, 3, 8, 8), cpu.device().caps())) << impl.name;
  }
}

}  // namespace
}  // namespace assay::ops
