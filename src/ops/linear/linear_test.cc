#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include "ops/case_rows.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::OwnedMatrix;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

constexpr WF kFormats[] = {WF::kF32, WF::kBf16, WF::kF16, WF::kNvfp4};

LinearDesc make_desc(int64_t n, int64_t k, WF format, DType activation, DType output) {
  return {n, k, format, weight_only_lane(format), activation, output};
}

struct Shape {
  int64_t n, k;
  std::vector<int64_t> shards;
};

std::vector<OwnedMatrix> random_shards(Random& random, WF format, const Shape& shape) {
  std::vector<OwnedMatrix> matrices;
  for (int64_t rows : shape.shards) matrices.push_back(testing::random_matrix(random, format, rows, shape.k));
  return matrices;
}

LinearOp::Args make_args(const Tensor& x, Tensor& y, const Tensor* residual = nullptr) {
  LinearOp::Args args;
  args.tokens = {0, static_cast<int32_t>(x.rows()), nullptr};
  args.x = x.view();
  args.y = y.view();
  if (residual != nullptr) args.residual = residual->view();
  return args;
}

Tensor run(Cpu& cpu, std::string_view row, const LinearDesc& desc, WeightId id, const Tensor& x,
           const Tensor* residual = nullptr, int32_t decode = 0) {
  Tensor y(desc.output, x.rows(), desc.n);
  LinearOp::Args args = make_args(x, y, residual);
  args.tokens.decode = decode;
  cpu.prepare<LinearOp>(row, desc, {static_cast<int32_t>(x.rows()), 1}, {id}).run(args);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// Every output of `y` against the exact sum of the decoded weights, within the derived bound.
void expect_right(const LinearDesc& desc, const WeightSource& source, const Tensor& x, const Tensor* residual,
                  const Tensor& y, std::string_view row) {
  std::vector<double> weights;
  for (const auto& matrix : source.matrices) {
    const auto part = testing::decoded(matrix);
    weights.insert(weights.end(), part.begin(), part.end());
  }
  const auto k_count = static_cast<size_t>(desc.k);
  std::vector<double> token(k_count);
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (size_t k = 0; k < k_count; ++k) token[k] = x.at(t, static_cast<int64_t>(k));
    const auto shifts = case_shifts(desc.format, desc.activation, token);
    for (int64_t n = 0; n < desc.n; ++n) {
      const CaseDot dot =
          case_dot(token, shifts, std::span(weights).subspan(static_cast<size_t>(n) * k_count, k_count));
      double sum = dot.sum;
      double bound =
          testing::dot_error_bound(desc.k, dot.magnitudes + dot.shifted) + dot.shifted + testing::ulp(desc.output, sum);
      if (residual != nullptr) {
        sum += residual->at(t, n);
        bound += testing::ulp(desc.output, sum);
      }
      ASSERT_NEAR(y.at(t, n), sum, bound) << row << " " << describe(desc) << " t=" << t << " n=" << n;
    }
  }
}

TEST(Linear, RowsComputeTheFormula) {
  const Shape shapes[] = {{128, 256, {128}}, {17, 128, {3, 9, 5}}, {1, 16, {1}}, {7, 48, {7}}, {33, 1040, {32, 1}}};
  Random random(1);
  for (WF format : kFormats) {
    for (const Shape& shape : shapes) {
      for (DType activation : {DType::kBf16, DType::kF32}) {
        for (int64_t tokens : {1, 3, 9, 33}) {
          const bool with_residual = tokens % 2 == 1 && tokens > 1;
          const DType output = tokens == 3 ? DType::kF32 : activation;
          const LinearDesc desc = make_desc(shape.n, shape.k, format, activation, output);
          Cpu cpu;
          const WeightId id = cpu.weights().add(random_shards(random, format, shape));
          Tensor x(activation, tokens, shape.k);
          x.fill_normal(random);
          Tensor residual(output, tokens, shape.n, 1);
          residual.fill_normal(random);
          const Tensor* addend = with_residual ? &residual : nullptr;
          for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
            expect_right(desc, cpu.weights().source(id), x, addend, run(cpu, row, desc, id, x, addend), row);
          }
        }
      }
    }
  }
}

// K that is no multiple of 16 and a view with a stride of its own.
TEST(Linear, TakesAnyKInUnquantisedFormats) {
  Random random(2);
  for (WF format : {WF::kF32, WF::kBf16, WF::kF16}) {
    for (int64_t k : {1, 15, 17, 530}) {
      const LinearDesc desc = make_desc(5, k, format, DType::kBf16, DType::kF32);
      Cpu cpu;
      const WeightId id = cpu.weights().add(testing::random_matrix(random, format, 5, k));
      Tensor x(DType::kBf16, 3, k, 5);
      x.fill_normal(random);
      for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
        expect_right(desc, cpu.weights().source(id), x, nullptr, run(cpu, row, desc, id, x), row);
      }
    }
  }
}

// A one-hot input gives back the weights: the canonical fp32 value, bit for bit, in every format, also subnormal
// halves, infinities (where the other inputs are not zero times infinity) and every code and scale of NVFP4.
TEST(Linear, OneHotInputsGiveBackTheWeights) {
  Random random(3);
  for (WF format : kFormats) {
    const int64_t n = 40, k = 64;
    Cpu cpu;
    OwnedMatrix matrix = testing::random_matrix(random, format, n, k);
    if (format == WF::kF16) {  // all finite halves, in turn
      for (int64_t i = 0; i < n * k; ++i) {
        const auto bits = static_cast<uint16_t>(i * 25 % 0x7c00 + (i % 2) * 0x8000);
        std::memcpy(matrix.data_bytes() + i * 2, &bits, 2);
      }
    }
    const numeric::EncodedMatrix encoded = matrix.matrix;
    const WeightId id = cpu.weights().add(std::move(matrix));
    Tensor x(DType::kBf16, k, k);
    x.fill([](int64_t t, int64_t i) { return t == i ? 1.0f : 0.0f; });
    const LinearDesc desc = make_desc(n, k, format, DType::kBf16, DType::kF32);
    std::vector<float> expected(static_cast<size_t>(k));
    for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
      const Tensor y = run(cpu, row, desc, id, x);
      for (int64_t i = 0; i < n; ++i) {
        numeric::decode_row(encoded, i, expected.data());
        for (int64_t j = 0; j < k; ++j)
          ASSERT_EQ(y.at(j, i), expected[static_cast<size_t>(j)]) << row << " " << i << "," << j;
      }
    }
  }
}

// Small integers sum exactly in any order, so rows must agree bit for bit.
TEST(Linear, RowsAgreeExactlyWhereSumsAreExact) {
  Random random(4);
  for (WF format : kFormats) {
    Cpu cpu;
    OwnedMatrix matrix(format, 23, 272);
    if (format == WF::kNvfp4) {
      matrix = testing::random_matrix(random, format, 23, 272);
      for (size_t i = 0; i < matrix.matrix.scales.size(); ++i) matrix.scale_bytes()[i] = std::byte{0x38};  // 1.0
      matrix.matrix.global_scale = 0.25f;
    } else {
      std::vector<float> values(23 * 272);
      for (float& value : values) value = static_cast<float>(random.below(17) - 8);
      matrix = testing::encode(format, 23, 272, values);
    }
    const WeightId id = cpu.weights().add(std::move(matrix));
    for (DType activation : {DType::kBf16, DType::kF32}) {
      Tensor x(activation, 6, 272);
      x.fill([&](int64_t, int64_t) { return static_cast<float>(random.below(17) - 8); });
      const LinearDesc desc = make_desc(23, 272, format, activation, activation);
      for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
        EXPECT_EQ(run(cpu, "reference", desc, id, x), run(cpu, row, desc, id, x)) << row;
      }
    }
  }
}

// Prefill = decode = batched, for any thread count: bit for bit. Batches of 2 to 9 tokens take other register tiles
// than one of 150, whose rows are decoded to panels; k = 1200 needs two of them.
TEST(Linear, BitsDependOnNeitherBatchNorThreads) {
  Random random(5);
  const Shape shape{300, 1200, {100, 90, 110}};  // a third thread starts in the third shard
  for (WF format : kFormats) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      const LinearDesc desc = make_desc(shape.n, shape.k, format, activation, DType::kF32);
      Random weights(77);
      Cpu cpu;
      const WeightId id = cpu.weights().add(random_shards(weights, format, shape));
      Tensor x(activation, 150, shape.k);
      x.fill_normal(random);
      for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
        if (row == std::string_view("reference")) continue;
        const Tensor batched = run(cpu, row, desc, id, x);
        int64_t first = 0;
        for (int64_t count : {1, 2, 3, 4, 5, 7, 9, 18}) {
          Tensor some(activation, count, shape.k);
          some.fill([&](int64_t t, int64_t i) { return static_cast<float>(x.at(first + t, i)); });
          const Tensor y = run(cpu, row, desc, id, some);
          for (int64_t t = 0; t < count; ++t) {
            for (int64_t n = 0; n < desc.n; ++n) ASSERT_EQ(y.at(t, n), batched.at(first + t, n)) << row;
          }
          first += count;
        }
        for (int threads : {2, 3}) {
          Random same(77);
          Cpu other(threads);
          const WeightId other_id = other.weights().add(random_shards(same, format, shape));
          EXPECT_EQ(run(other, row, desc, other_id, x), batched) << row;
        }
      }
    }
  }
}

// A step of both phases gives a token the bits that a step of its phase alone gives it.
TEST(Linear, BitsOfATokenDependOnItsPhaseAlone) {
  constexpr int32_t kTokens = 150;
  Random random(6);
  const Shape shape{100, 2560, {100}};  // two blocks of form kLanes
  const LinearDesc desc = make_desc(shape.n, shape.k, WF::kNvfp4, DType::kBf16, DType::kF32);
  Cpu cpu;
  const WeightId id = cpu.weights().add(random_shards(random, WF::kNvfp4, shape));
  Tensor x(DType::kBf16, kTokens, shape.k);
  x.fill_normal(random);
  for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
    const Tensor prefill = run(cpu, row, desc, id, x), decode = run(cpu, row, desc, id, x, nullptr, kTokens);
    for (const int32_t count : {1, 19, 140}) {
      const Tensor both = run(cpu, row, desc, id, x, nullptr, count);
      ASSERT_EQ(testing::first_other_row(both, decode, count, prefill), kTokens) << row << ", decode " << count;
    }
    EXPECT_EQ(decode == prefill, !std::string_view(row).ends_with("_phased")) << row;
    if (row == std::string_view("cpu_avx2_phased")) {
      EXPECT_EQ(decode, run(cpu, "cpu_avx2", desc, id, x));
    }
  }
}

// Rows that name the same order of additions give the same bits.
TEST(Linear, RowsOfOneOrderAgreeBitForBit) {
  Random random(9);
  for (WF format : kFormats) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      for (const int64_t k : {96, 128, 528}) {
        const LinearDesc desc = make_desc(37, k, format, activation, DType::kF32);
        Cpu cpu;
        const WeightId id = cpu.weights().add(testing::random_matrix(random, format, 37, k));
        for (int64_t tokens : {1, 21}) {
          Tensor x(activation, tokens, k);
          x.fill_normal(random);
          std::map<OrderId, Tensor> by_order;
          for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
            const Tensor y = run(cpu, row, desc, id, x);
            const auto [found, fresh] = by_order.try_emplace(testing::row_named<LinearOp>(row).order(desc), y);
            EXPECT_EQ(found->second, y) << row << " " << describe(desc);
          }
        }
      }
    }
  }
}

// Scale bytes that no checkpoint should hold: all 256, signed ones and NaN among them, mean what they say.
TEST(Linear, EveryScaleByteMeansTheSameInEveryRow) {
  const int64_t n = 256, k = 16;
  OwnedMatrix matrix(WF::kNvfp4, n, k);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k / 2; ++j) matrix.data_bytes()[i * k / 2 + j] = std::byte{0x22};  // 1.0 everywhere
    matrix.scale_bytes()[i] = static_cast<std::byte>(i);
  }
  Cpu cpu;
  const WeightId id = cpu.weights().add(std::move(matrix));
  const LinearDesc desc = make_desc(n, k, WF::kNvfp4, DType::kBf16, DType::kF32);
  for (int64_t tokens : {1, 9}) {
    Tensor x(DType::kBf16, tokens, k);
    x.fill([](int64_t, int64_t i) { return i == 3 ? 1.0f : 0.0f; });
    for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
      const Tensor y = run(cpu, row, desc, id, x);
      for (int64_t i = 0; i < n; ++i) {
        const float wanted = numeric::e4m3_to_float(static_cast<uint8_t>(i));
        if (std::isnan(wanted)) {
          ASSERT_TRUE(std::isnan(y.at(tokens - 1, i))) << row << " " << i;
        } else {
          ASSERT_EQ(y.at(tokens - 1, i), wanted) << row << " " << i;
        }
      }
    }
  }
}

// Cancelling, tiny and huge terms: the bound covers them, and nothing overflows that the exact sum does not.
TEST(Linear, SurvivesAdversarialMagnitudes) {
  Random random(6);
  for (WF format : {WF::kBf16, WF::kNvfp4}) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, format, 19, 256));
    Tensor x(DType::kBf16, 4, 256);
    x.fill([&](int64_t t, int64_t k) {
      if (t == 0) return k % 2 == 0 ? 1e4f : -1e4f;
      if (t == 1) return k % 37 == 0 ? 3e20f : 1e-20f;
      if (t == 2) return 0.0f;
      return 1e-30f * random.normal();
    });
    const LinearDesc desc = make_desc(19, 256, format, DType::kBf16, DType::kBf16);
    for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
      expect_right(desc, cpu.weights().source(id), x, nullptr, run(cpu, row, desc, id, x), row);
    }
  }
}

// Infinite and NaN inputs give what the formula gives: infinities by the signs of weights, NaN where a weight is zero
// or infinities cancel.
TEST(Linear, InputsThatAreNotFiniteShow) {
  Random random(8);
  for (WF format : {WF::kBf16, WF::kNvfp4}) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, format, 70, 288));
    Tensor x(DType::kBf16, 4, 288);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    x.fill([&](int64_t t, int64_t k) {
      if (k == 37 && t < 2) return t == 0 ? kInfinity : -kInfinity;
      if (t == 2 && (k == 5 || k == 250)) return kInfinity;
      if (t == 3 && k == 100) return std::nanf("");
      return random.normal();
    });
    const LinearDesc desc = make_desc(70, 288, format, DType::kBf16, DType::kF32);
    const Tensor expected = run(cpu, "reference", desc, id, x);
    for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
      const Tensor y = run(cpu, row, desc, id, x);
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t n = 0; n < 70; ++n) {
          const double got = y.at(t, n), wanted = expected.at(t, n);
          ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted))) << row << " t=" << t << " n=" << n;
        }
      }
    }
  }
}

// Beside the infinity: the largest finite activation is a number like others, alone in its block and not.
TEST(Linear, TheLargestFiniteInputIsFinite) {
  constexpr int64_t kOutputs = 70, kInputs = 16;
  OwnedMatrix matrix(WF::kNvfp4, kOutputs, kInputs);
  for (int64_t i = 0; i < kOutputs * kInputs / 2; ++i) matrix.data_bytes()[i] = std::byte{0x11};  // 0.5 everywhere
  for (int64_t i = 0; i < kOutputs; ++i) matrix.scale_bytes()[i] = std::byte{1};                  // 2^-9
  Cpu cpu;
  const WeightId id = cpu.weights().add(std::move(matrix));
  const LinearDesc desc = make_desc(kOutputs, kInputs, WF::kNvfp4, DType::kBf16, DType::kF32);
  for (int64_t tokens : {1, 9}) {
    Tensor x(DType::kBf16, tokens, kInputs);
    x.fill([](int64_t t, int64_t k) { return k == 5 ? 0x1.fep127f : k == 6 && t % 2 == 1 ? -0x1.fep126f : 0.0f; });
    for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
      const Tensor y = run(cpu, row, desc, id, x);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < kOutputs; ++n) {
          ASSERT_EQ(y.at(t, n), t % 2 == 0 ? 0x1.fep117f : 0x1.fep116f) << row << " t=" << t << " n=" << n;
        }
      }
    }
  }
}

TEST(Linear, ResidualMayBeTheOutput) {
  Random random(7);
  const LinearDesc desc = make_desc(64, 32, WF::kBf16, DType::kBf16, DType::kBf16);
  for (const char* row : testing::cpu_rows<LinearOp>(desc, Cpu().device().caps())) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 64, 32));
    Tensor x(DType::kBf16, 5, 32), stream(DType::kBf16, 5, 64);
    x.fill_normal(random);
    stream.fill_normal(random);
    const Tensor apart = run(cpu, row, desc, id, x, &stream);
    cpu.prepare<LinearOp>(row, desc, {5, 1}, {id}).run(make_args(x, stream, &stream));
    EXPECT_EQ(stream, apart);
  }
}

TEST(Linear, RowsRefuseWithAReason) {
  const auto refusal = [](const char* row, const LinearDesc& desc) {
    return testing::row_named<LinearOp>(row).can_run(desc, DeviceCaps{}).value_or("");
  };
  for (const char* row : {"reference", "cpu_portable"}) {
    LinearDesc desc = make_desc(8, 32, WF::kNvfp4, DType::kBf16, DType::kBf16);
    EXPECT_EQ(refusal(row, desc), "");
    desc.lane = Lane::kW4A4;
    EXPECT_EQ(refusal(row, desc), "lane w4a4 is not this row's for nvfp4");
    desc.lane = Lane::kW4A16;
    desc.k = 24;
    EXPECT_EQ(refusal(row, desc), "k = 24 is no multiple of 16, as nvfp4 needs");
    EXPECT_NE(refusal(row, make_desc(8, 32, WF::kBf16, DType::kF16, DType::kF16)), "");
    EXPECT_NE(refusal(row, make_desc(8, 32, WF::kBf16, DType::kF32, DType::kBf16)), "");
  }
}

// On a CPU without the instructions, and where vdpbf16ps cannot be exact.
TEST(Linear, RowsOfAnInstructionSetSayWhatIsMissing) {
  const auto refused = [](const char* row, const LinearDesc& desc, const DeviceCaps& caps) {
    return testing::row_named<LinearOp>(row).can_run(desc, caps).has_value();
  };
  const LinearDesc desc = make_desc(8, 32, WF::kBf16, DType::kBf16, DType::kBf16);
  DeviceCaps all;
  all.cpu = {true, true, true};
  for (const char* row : {"cpu_avx2", "cpu_avx512", "cpu_avx512_bf16"}) {
    EXPECT_TRUE(refused(row, desc, DeviceCaps{}));
    EXPECT_FALSE(refused(row, desc, all));
  }
  for (const LinearDesc& other : {make_desc(8, 32, WF::kF16, DType::kBf16, DType::kBf16),
                                  make_desc(8, 32, WF::kBf16, DType::kF32, DType::kF32)}) {
    EXPECT_TRUE(refused("cpu_avx512_bf16", other, all));
    EXPECT_FALSE(refused("cpu_avx512", other, all));
  }
}

TEST(Linear, MakeReportsAWeightThatDoesNotFit) {
  Random random(8);
  Cpu cpu;
  const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 8, 32));
  MakeContext context = cpu.context();
  const auto& impl = testing::row_named<LinearOp>("cpu_portable");
  for (const LinearDesc& desc : {make_desc(9, 32, WF::kBf16, DType::kBf16, DType::kBf16),
                                 make_desc(8, 64, WF::kBf16, DType::kBf16, DType::kBf16),
                                 make_desc(8, 32, WF::kF16, DType::kBf16, DType::kBf16)}) {
    const auto plan = impl.make(desc, {1, 1}, {id}, context);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().kind, ErrorKind::kCheckpoint);
  }
}

// Fused rows of the same id must give the same bits only where products are exact.
TEST(Linear, OrderIdsTellExactProductsApart) {
  const auto& impl = testing::row_named<LinearOp>("cpu_portable");
  const auto order = [&](WF format, DType activation) {
    return impl.order(make_desc(8, 32, format, activation, DType::kF32));
  };
  EXPECT_EQ(order(WF::kBf16, DType::kBf16), order(WF::kF16, DType::kBf16));
  EXPECT_NE(order(WF::kBf16, DType::kBf16), order(WF::kNvfp4, DType::kBf16));
  EXPECT_NE(order(WF::kBf16, DType::kBf16), order(WF::kF32, DType::kBf16));
  EXPECT_EQ(order(WF::kBf16, DType::kF32), order(WF::kF32, DType::kBf16));
}

}  // namespace
}  // namespace assay::ops
