#include "ops/gated_delta/gated_delta.h"

#include <gtest/gtest.h>

#include <tuple>

#include "ops/testing_batch.h"

namespace assay::ops {
namespace {

using namespace testing;

constexpr double kU = 0x1p-24;  // unit roundoff of fp32

GatedDeltaDesc make_desc(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim,
                         DType activation = DType::kF32) {
  return {key_heads, value_heads, key_dim, value_dim, activation};
}

struct Inputs {
  Tensor q, k, v, g, beta;
  Inputs(const GatedDeltaDesc& desc, int64_t tokens)
      : q(DType::kF32, tokens, desc.key_heads * desc.key_dim),
        k(DType::kF32, tokens, desc.key_heads * desc.key_dim),
        v(desc.activation, tokens, desc.value_heads * desc.value_dim),
        g(DType::kF32, tokens, desc.value_heads),
        beta(DType::kF32, tokens, desc.value_heads) {}
};

// Normed keys and queries, as conv_gates makes them; decays from nearly 1 to nearly 0.
Inputs random_inputs(Random& random, const GatedDeltaDesc& desc, int64_t tokens) {
  Inputs in(desc, tokens);
  const float scale = 1.0f / std::sqrt(static_cast<float>(desc.key_dim));
  in.q.fill([&](int64_t, int64_t) { return random.normal() * scale * scale; });
  in.k.fill([&](int64_t, int64_t) { return random.normal() * scale; });
  in.v.fill_normal(random);
  in.g.fill([&](int64_t, int64_t) { return -std::exp(random.uniform(-7.0f, 2.0f)); });
  in.beta.fill([&](int64_t, int64_t) { return random.uniform(0.0f, 1.0f); });
  return in;
}

Tensor outputs(const GatedDeltaDesc& desc, int64_t tokens) {
  return Tensor(desc.activation, tokens, desc.value_heads * desc.value_dim);
}

TestState make_state(const GatedDeltaDesc& desc, int64_t slots) {
  return TestState(desc.activation, slots, 1, int64_t{desc.value_heads} * desc.key_dim * desc.value_dim);
}

void fill_slot(Random& random, TestState& state, int64_t slot) {
  for (int64_t i = 0; i < state.delta.cols(); ++i) state.delta.set(slot, i, random.normal());
}

void run(Cpu& cpu, std::string_view row, const GatedDeltaDesc& desc, const TestBatch& batch, const Inputs& in,
         TestState& state, Tensor& out, int64_t first = 0, Sentinel* flags = nullptr) {
  const int64_t n = batch.tokens();
  cpu.prepare<GatedDeltaOp>(row, desc, batch.bucket())
      .run({batch.view(), rows_of(in.q, first, n), rows_of(in.k, first, n), rows_of(in.v, first, n),
            rows_of(in.g, first, n), rows_of(in.beta, first, n), state.view(), rows_of(out, first, n)},
           nullptr, flags, 0);
}

std::vector<const char*> rows_of(const GatedDeltaDesc& desc) {
  return testing::cpu_rows<GatedDeltaOp>(desc, Cpu().device().caps());
}

// The recurrence of one head in double, with a bound on what fp32 may have lost: each line of the formula passes on the
// errors of what it reads and adds its own roundings (exp: 2 ulp = 4 u; a sum over key_dim: key_dim + 1 roundings).
class Model {
 public:
  Model(const GatedDeltaDesc& desc, const TestState& state, int64_t slot, int32_t head)
      : desc_(desc), head_(head), state_(size()), error_(size()) {
    for (size_t i = 0; slot >= 0 && i < size(); ++i) {
      state_[i] =
          state.delta.at(slot, static_cast<int64_t>(head) * static_cast<int64_t>(size()) + static_cast<int64_t>(i));
    }
  }

  // Checks `out` for this token of in.
  void step(const Inputs& in, int64_t token, const Tensor& out) {
    const double decay = std::exp(in.g.at(token, head_));
    const double beta = in.beta.at(token, head_);
    const int64_t key = head_ / (desc_.value_heads / desc_.key_heads) * desc_.key_dim;
    for (int32_t c = 0; c < desc_.value_dim; ++c) {
      double memory = 0, memory_size = 0, memory_error = 0;
      for (int32_t i = 0; i < desc_.key_dim; ++i) {
        const double k = in.k.at(token, key + i);
        memory += decay * at(i, c) * k;
        memory_size += std::abs(decay * at(i, c) * k);
        memory_error += decay * error(i, c) * std::abs(k);
      }
      memory_error += (desc_.key_dim + 7) * kU * memory_size;
      const double v = in.v.at(token, head_ * desc_.value_dim + c);
      const double delta = beta * (v - memory);
      const double delta_error = beta * (memory_error + 2 * kU * (std::abs(v) + std::abs(memory)));
      double wanted = 0, bound = 0;
      for (int32_t i = 0; i < desc_.key_dim; ++i) {
        const double k = in.k.at(token, key + i);
        const double q = in.q.at(token, key + i);
        error(i, c) = decay * error(i, c) + std::abs(k) * delta_error + 6 * kU * decay * std::abs(at(i, c)) +
                      2 * kU * std::abs(k * delta);
        at(i, c) = decay * at(i, c) + k * delta;
        wanted += at(i, c) * q;
        bound += error(i, c) * std::abs(q) + (desc_.key_dim + 1) * kU * std::abs(at(i, c) * q);
      }
      if (desc_.activation == DType::kBf16) bound += ulp(DType::kBf16, std::abs(wanted) + bound) / 2;
      ASSERT_NEAR(out.at(token, head_ * desc_.value_dim + c), wanted, bound + 1e-30)
          << "token " << token << " head " << head_ << " column " << c;
    }
  }

  void check_state(const TestState& state, int64_t slot) const {
    for (size_t i = 0; i < size(); ++i) {
      const auto col = static_cast<int64_t>(head_) * static_cast<int64_t>(size()) + static_cast<int64_t>(i);
      ASSERT_NEAR(state.delta.at(slot, col), state_[i], error_[i] + 1e-30) << "slot " << slot << " element " << i;
    }
  }

 private:
  size_t size() const { return static_cast<size_t>(desc_.key_dim) * static_cast<size_t>(desc_.value_dim); }
  double& at(int32_t i, int32_t c) { return state_[static_cast<size_t>(i * desc_.value_dim + c)]; }
  double& error(int32_t i, int32_t c) { return error_[static_cast<size_t>(i * desc_.value_dim + c)]; }
  GatedDeltaDesc desc_;
  int32_t head_;
  std::vector<double> state_, error_;
};

void compare(const GatedDeltaDesc& desc, const Inputs& in, uint64_t seed) {
  Cpu cpu(2);
  Random random(seed);
  // a new sequence, one that goes on from slot 1, and one that shares that slot
  const TestBatch batch({{0, 9, {}, -1, 0}, {7, 1, {}, 1, 3}, {7, 6, {}, 1, 2}});
  ASSERT_EQ(in.q.rows(), batch.tokens());
  for (const char* row : rows_of(desc)) {
    TestState state = make_state(desc, 5);
    fill_slot(random, state, 1);
    const TestState before = state;
    Tensor out = outputs(desc, batch.tokens());
    run(cpu, row, desc, batch, in, state, out);
    for (int32_t head = 0; head < desc.value_heads; ++head) {
      for (int32_t s = 0; s < 3; ++s) {
        const BatchView view = batch.view();
        Model model(desc, before, view.state_read[s], head);
        for (int32_t token = view.query_start[s]; token < view.query_start[s + 1]; ++token) model.step(in, token, out);
        model.check_state(state, view.state_write[s]);
      }
    }
    EXPECT_TRUE(out.guards_intact() && state.delta.guards_intact()) << row;
    for (int64_t i = 0; i < state.delta.cols(); ++i) {
      ASSERT_EQ(state.delta.at(1, i), before.delta.at(1, i)) << row << " wrote the slot it reads";
      ASSERT_TRUE(std::isnan(state.delta.at(4, i))) << row << " wrote a slot of nobody";
    }
  }
}

TEST(GatedDelta, MatchesTheRecurrence) {
  uint64_t seed = 1;
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    for (const int32_t ratio : {1, 2, 3, 4}) {
      const GatedDeltaDesc desc = make_desc(2, 2 * ratio, 16, 16, activation);
      Random random(seed);
      compare(desc, random_inputs(random, desc, 16), seed++);
    }
    const GatedDeltaDesc shapes[] = {make_desc(1, 2, 128, 128, activation), make_desc(2, 2, 24, 39, activation),
                                     make_desc(1, 3, 7, 5, activation), make_desc(1, 1, 512, 20, activation)};
    for (const GatedDeltaDesc& desc : shapes) {
      Random random(seed);
      compare(desc, random_inputs(random, desc, 16), seed++);
    }
  }
}

TEST(GatedDelta, ExtremeGates) {
  const GatedDeltaDesc desc = make_desc(1, 2, 16, 16);
  Random random(21);
  Inputs in = random_inputs(random, desc, 16);
  in.g.fill([](int64_t token, int64_t) { return token % 3 == 0 ? -0.0f : token % 3 == 1 ? -200.0f : -1e-9f; });
  in.beta.fill([](int64_t token, int64_t) { return token % 2 == 0 ? 1.0f : 0.0f; });
  compare(desc, in, 22);
  Inputs zero = random_inputs(random, desc, 16);
  zero.k.fill([&](int64_t token, int64_t) { return token % 2 == 0 ? 0.0f : 1e-4f * random.normal(); });
  zero.q.fill([&](int64_t token, int64_t) { return token % 4 == 0 ? 0.0f : 1e-4f * random.normal(); });
  compare(desc, zero, 23);
}

// Six tokens worked out in double outside this code base.
TEST(GatedDelta, WorkedNumbers) {
  const GatedDeltaDesc desc = make_desc(1, 1, 4, 3);
  Inputs in(desc, 6);
  const auto l2 = [](const double(&x)[4], int64_t i) {
    return x[i] / std::sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3] + 1e-6);
  };
  in.q.fill([&](int64_t t, int64_t i) {
    double x[4];
    for (int j = 0; j < 4; ++j) x[j] = std::sin(0.7 * static_cast<double>(t + 1) * (j + 1));
    return static_cast<float>(0.5 * l2(x, i));
  });
  in.k.fill([&](int64_t t, int64_t i) {
    double x[4];
    for (int j = 0; j < 4; ++j) x[j] = std::cos(0.5 * static_cast<double>(t + 1) + 0.9 * j);
    return static_cast<float>(l2(x, i));
  });
  in.v.fill([](int64_t t, int64_t j) {
    return static_cast<float>(std::sin(0.3 * static_cast<double>(t) + 1.1 * static_cast<double>(j)) +
                              0.1 * static_cast<double>(j));
  });
  in.g.fill([](int64_t t, int64_t) {
    return static_cast<float>(-2.0 * std::log1p(std::exp(0.4 * static_cast<double>(t) - 0.5)));
  });
  in.beta.fill(
      [](int64_t t, int64_t) { return static_cast<float>(1 / (1 + std::exp(0.3 - 0.2 * static_cast<double>(t)))); });
  EXPECT_NEAR(in.g.at(5, 0), -3.402827, 1e-6);
  EXPECT_NEAR(in.beta.at(5, 0), 0.668188, 1e-6);
  const double first[] = {0.04626781, -0.00666609, -0.04326360};
  const double last[] = {-0.07487615, -0.04660654, 0.02438055};
  const double end[] = {-0.44710741, -0.27685921, 0.14693480,  -0.33344781, -0.20824838, 0.10792436,
                        0.03255878,  0.01796067,  -0.01276141, 0.37392620,  0.23057778,  -0.12378961};
  Cpu cpu;
  for (const char* row : rows_of(desc)) {
    TestState state = make_state(desc, 2);
    for (int i = 0; i < 12; ++i) state.delta.set(0, i, 0.1f * static_cast<float>(i / 3 - i % 3));
    Tensor out = outputs(desc, 6);
    run(cpu, row, desc, TestBatch({{3, 6, {}, 0, 1}}), in, state, out);
    for (int j = 0; j < 3; ++j) {
      EXPECT_NEAR(out.at(0, j), first[j], 5e-7) << row;
      EXPECT_NEAR(out.at(5, j), last[j], 5e-7) << row;
    }
    for (int i = 0; i < 12; ++i) EXPECT_NEAR(state.delta.at(1, i), end[i], 5e-7) << row << " " << i;
  }
}

// A value head's key head is head / ratio: only that one's keys reach it.
TEST(GatedDelta, ValueHeadsOfAKeyHeadAreNeighbours) {
  Cpu cpu;
  for (const int32_t ratio : {2, 3, 4}) {
    const GatedDeltaDesc desc = make_desc(2, 2 * ratio, 4, 4);
    Inputs in(desc, 1);
    in.k.fill([](int64_t, int64_t col) { return col == 4 ? 1.0f : 0.0f; });  // only key head 1 has a key
    in.q.fill([](int64_t, int64_t) { return 1.0f; });
    in.v.fill([](int64_t, int64_t) { return 1.0f; });
    in.g.fill([](int64_t, int64_t) { return 0.0f; });
    in.beta.fill([](int64_t, int64_t) { return 1.0f; });
    for (const char* row : rows_of(desc)) {
      TestState state = make_state(desc, 1);
      Tensor out = outputs(desc, 1);
      run(cpu, row, desc, TestBatch({{0, 1, {}, -1, 0}}), in, state, out);
      for (int32_t head = 0; head < 2 * ratio; ++head) EXPECT_EQ(out.at(0, head * 4), head < ratio ? 0.0 : 1.0) << row;
    }
  }
}

// The last slot a sequence cut into pieces was left in; pieces go from slot to slot, each poisoned before.
void run_pieces(Cpu& cpu, std::string_view row, const GatedDeltaDesc& desc, const Inputs& in,
                const std::vector<int32_t>& cuts, TestState& final_state, Tensor& out) {
  TestState state = make_state(desc, 2);
  int32_t position = 0;
  int32_t slot = -1;
  for (const int32_t count : cuts) {
    const int32_t target = slot == 0 ? 1 : 0;
    for (int64_t i = 0; i < state.delta.cols(); ++i) state.delta.set(target, i, NAN);
    run(cpu, row, desc, TestBatch({{position, count, {}, slot, target}}), in, state, out, position);
    position += count;
    slot = target;
  }
  for (int64_t i = 0; i < state.delta.cols(); ++i)
    final_state.delta.set(0, i, static_cast<float>(state.delta.at(slot, i)));
}

TEST(GatedDelta, NeitherCutsNorThreadsMatter) {
  for (const DType activation : {DType::kF32, DType::kBf16}) {
    const GatedDeltaDesc desc = make_desc(2, 6, 32, 40, activation);
    Random random(31);
    const Inputs in = random_inputs(random, desc, 70);
    for (const char* row : rows_of(desc)) {
      Cpu one(1);
      TestState state = make_state(desc, 1);
      Tensor whole = outputs(desc, 70);
      run_pieces(one, row, desc, in, {70}, state, whole);
      for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        for (const auto& cuts : {std::vector<int32_t>{70}, {64, 6}, {1, 2, 3, 5, 59}, std::vector<int32_t>(70, 1)}) {
          TestState cut_state = make_state(desc, 1);
          Tensor out = outputs(desc, 70);
          run_pieces(cpu, row, desc, in, cuts, cut_state, out);
          EXPECT_TRUE(out == whole) << row << " " << threads << " threads, " << cuts.size() << " pieces";
          EXPECT_TRUE(cut_state == state) << row;
        }
      }
    }
  }
}

TEST(GatedDelta, ABatchIsItsSequencesAlone) {
  const GatedDeltaDesc desc = make_desc(2, 4, 16, 184, DType::kBf16);  // strips of 64, 64 and 32 + 16 + 8 columns
  Random random(41);
  const Inputs in = random_inputs(random, desc, 15);
  TestState filled = make_state(desc, 6);
  fill_slot(random, filled, 0);
  fill_slot(random, filled, 4);
  const std::vector<SequenceStep> steps = {{3, 1, {}, 0, 1}, {0, 0, {}, 4, 5}, {9, 4, {}, 4, 3}, {0, 10, {}, -1, 2}};
  std::map<OrderId, Tensor> by_order;
  for (const char* row : rows_of(desc)) {
    Cpu two(2), one(1);
    TestState together = filled, alone = filled;
    Tensor out = outputs(desc, 15);
    Tensor out_alone = outputs(desc, 15);
    run(two, row, desc, TestBatch(steps), in, together, out);
    int64_t first = 0;
    for (const SequenceStep& step : steps) {
      run(one, row, desc, TestBatch({step}), in, alone, out_alone, first);
      first += step.tokens;
    }
    EXPECT_TRUE(out == out_alone) << row;
    EXPECT_TRUE(together == alone) << row;
    EXPECT_TRUE(std::isnan(together.delta.at(5, 0))) << row;  // no tokens: its slot is left alone
    const OrderId order = row_named<GatedDeltaOp>(row).order(desc);
    EXPECT_TRUE(by_order.try_emplace(order, out).first->second == out) << row;
  }
}

TEST(GatedDelta, SentinelSeesANonFiniteState) {
  const GatedDeltaDesc desc = make_desc(1, 2, 16, 20);
  Random random(51);
  for (const char* row : rows_of(desc)) {
    // A NaN goes through every later state of its column; an infinity of the last token is in the last state alone.
    for (const auto& [token, column, value] :
         {std::tuple{1, 39, 0.5f}, {1, 39, NAN}, {4, 39, INFINITY}, {4, 20, -INFINITY}, {4, 0, NAN}}) {
      Cpu cpu(2);
      Inputs in = random_inputs(random, desc, 5);
      in.v.set(token, column, value);
      TestState state = make_state(desc, 1);
      Tensor out = outputs(desc, 5);
      uint32_t word = 0;
      Sentinel flags{&word};
      run(cpu, row, desc, TestBatch({{0, 5, {}, -1, 0}}), in, state, out, 0, &flags);
      EXPECT_EQ(word, std::isfinite(value) ? 0u : Sentinel::kNonFiniteState) << row;
    }
  }
}

TEST(GatedDelta, RefusesWhatItCannotRun) {
  const DeviceCaps caps;
  for (const auto& impl : GatedDeltaOp::impls()) EXPECT_TRUE(impl.can_run(make_desc(2, 3, 4, 4), caps)) << impl.name;
  EXPECT_TRUE(row_named<GatedDeltaOp>("cpu_portable").can_run(make_desc(1, 1, 513, 4), caps));
}

}  // namespace
}  // namespace assay::ops
