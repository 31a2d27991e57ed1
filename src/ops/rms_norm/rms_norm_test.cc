#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

std::vector<const char*> rows() {
  Cpu cpu;
  return testing::cpu_rows<RmsNormOp>({NormKind::kGated, 1}, cpu.device().caps());
}

void run(Cpu& cpu, const char* row, const RmsNormDesc& desc, WeightId id, const Tensor& x, const Tensor* z, Tensor& y,
         Sentinel* flags = nullptr, int layer = 0) {
  const auto tokens = static_cast<int32_t>(x.rows());
  RmsNormOp::Args args{{0, tokens, nullptr}, x.view(), {}, y.view()};
  if (z != nullptr) args.z = z->view();
  cpu.prepare<RmsNormOp>(row, desc, {tokens, 1}, {id}).run(args, nullptr, flags, layer);
}

double expected(const RmsNormDesc& desc, const std::vector<double>& weight, const Tensor& x, const Tensor& z, int64_t t,
                int64_t column) {
  const int64_t first = column / desc.width * desc.width;
  double squares = 0;
  for (int64_t i = 0; i < desc.width; ++i) squares += x.at(t, first + i) * x.at(t, first + i);
  const double n = x.at(t, column) / std::sqrt(squares / static_cast<double>(desc.width) + desc.eps);
  const double w = weight[static_cast<size_t>(column - first)];
  if (desc.kind == NormKind::kZeroCentred) return n * (1 + w);
  const double sigmoid = 1 / (1 + std::exp(-z.at(t, column)));
  return n * w * (desc.sigmoid_gate ? 1 : z.at(t, column)) * sigmoid;
}

// The sum of squares has no cancellation: its relative error is that of a dot product, halved by the square root; then
// follow mean, eps, root, reciprocal, 1 + w, three products, an exponential within 1.5 ulp, its sum with 1 and the
// quotient: 13 roundings before the last.
TEST(RmsNorm, RowsComputeTheFormula) {
  Random random(1);
  for (DType activation : {DType::kBf16, DType::kF32}) {
    for (WF format : {WF::kBf16, WF::kF32, WF::kF16}) {
      for (int64_t width : {1, 16, 33, 128, 256, 1000}) {
        for (int kind = 0; kind < 3; ++kind) {
          const RmsNormDesc desc{
              kind == 0 ? NormKind::kZeroCentred : NormKind::kGated, width, 3, 1e-6f, kind == 2, activation};
          Cpu cpu;
          const WeightId id = cpu.weights().add(testing::random_matrix(random, format, 1, width));
          const auto weight = testing::decoded(cpu.weights().source(id).matrices[0]);
          Tensor x(activation, 4, width * 3), z(activation, 4, width * 3, 1);
          const float scales[] = {1.0f, 1e-4f, 300.0f, 0.0f};  // eps dominates in the second, the last is all zero
          x.fill([&](int64_t t, int64_t i) { return scales[t] * random.normal() * (i == 5 ? 100.0f : 1.0f); });
          z.fill_normal(random, 3.0f);
          for (const char* row : rows()) {
            Tensor y(activation, 4, width * 3, 2);
            run(cpu, row, desc, id, x, kind == 0 ? nullptr : &z, y);
            EXPECT_TRUE(y.guards_intact());
            for (int64_t t = 0; t < 4; ++t) {
              for (int64_t i = 0; i < width * 3; ++i) {
                const double wanted = expected(desc, weight, x, z, t, i);
                const double bound = (testing::dot_error_bound(width, 1.0) / 2 + 13 * 0x1p-24) * std::abs(wanted) +
                                     testing::ulp(activation, wanted);
                ASSERT_NEAR(y.at(t, i), wanted, bound) << row << " " << describe(desc) << " t=" << t << " i=" << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(RmsNorm, OutputMayBeTheInput) {
  Random random(2);
  const RmsNormDesc desc{NormKind::kZeroCentred, 64, 2, 1e-6f, false, DType::kBf16};
  for (const char* row : rows()) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, 64));
    Tensor x(DType::kBf16, 3, 128), y(DType::kBf16, 3, 128);
    x.fill_normal(random);
    run(cpu, row, desc, id, x, nullptr, y);
    run(cpu, row, desc, id, x, nullptr, x);
    EXPECT_EQ(x, y);
  }
}

TEST(RmsNorm, FlagsANonFiniteResidualAndNothingElse) {
  Random random(3);
  for (const char* row : rows()) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      for (float bad : {std::nanf(""), INFINITY, -INFINITY, 3e38f}) {
        for (NormKind kind : {NormKind::kZeroCentred, NormKind::kGated}) {
          const RmsNormDesc desc{kind, 40, 1, 1e-6f, false, activation};
          Cpu cpu(2);
          const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kF32, 1, 40));
          Tensor x(activation, 9, 40), z(activation, 9, 40), y(activation, 9, 40);
          z.fill_normal(random);
          x.fill_normal(random);
          uint32_t words[] = {0, 8, 0};
          Sentinel sentinel{words};
          run(cpu, row, desc, id, x, &z, y, &sentinel, 1);
          EXPECT_EQ(words[1], 8u);
          x.set(7, 39, bad);
          run(cpu, row, desc, id, x, &z, y, &sentinel, 1);
          const bool flagged = kind == NormKind::kZeroCentred && !std::isfinite(bad);
          EXPECT_EQ(words[1], flagged ? 8u | Sentinel::kNonFiniteResidual : 8u) << row << " " << bad;
          EXPECT_EQ(words[0] | words[2], 0u);
          run(cpu, row, desc, id, x, &z, y);  // nobody looks
        }
      }
    }
  }
}

// Their order ids are equal.
TEST(RmsNorm, InstructionSetsAgreeBitForBit) {
  Random random(6);
  for (DType activation : {DType::kBf16, DType::kF32}) {
    for (int64_t width : {1, 15, 64, 200, 1003}) {
      for (int kind = 0; kind < 3; ++kind) {
        const RmsNormDesc desc{
            kind == 0 ? NormKind::kZeroCentred : NormKind::kGated, width, 2, 1e-6f, kind == 2, activation};
        Cpu cpu;
        const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, width));
        Tensor x(activation, 5, width * 2), z(activation, 5, width * 2), wanted(activation, 5, width * 2);
        x.fill_normal(random, 10.0f);
        z.fill_normal(random, 30.0f);
        x.set(3, 0, std::nanf(""));
        z.set(4, 0, -INFINITY);
        run(cpu, "cpu_portable", desc, id, x, &z, wanted);
        for (const char* row : rows()) {
          if (row == std::string_view("reference")) continue;
          Tensor y(activation, 5, width * 2);
          run(cpu, row, desc, id, x, &z, y);
          EXPECT_EQ(y, wanted) << row << " " << describe(desc);
        }
      }
    }
  }
}

TEST(RmsNorm, PortableBitsDependOnNeitherBatchNorThreads) {
  for (DType activation : {DType::kBf16, DType::kF32}) {
    const RmsNormDesc desc{NormKind::kZeroCentred, 1000, 2, 1e-6f, false, activation};
    Random random(4);
    Tensor x(activation, 64, 2000);
    x.fill_normal(random);
    Tensor batched(activation, 64, 2000);
    for (int threads : {1, 2, 3}) {
      Cpu cpu(threads);
      Random weights(9);
      const WeightId id = cpu.weights().add(testing::random_matrix(weights, WF::kBf16, 1, 1000));
      Tensor y(activation, 64, 2000);
      run(cpu, "cpu_portable", desc, id, x, nullptr, y);
      if (threads == 1) {
        batched = y;
        for (int64_t t = 0; t < 64; t += 21) {
          Tensor one(activation, 1, 2000), out(activation, 1, 2000);
          one.fill([&](int64_t, int64_t i) { return static_cast<float>(x.at(t, i)); });
          run(cpu, "cpu_portable", desc, id, one, nullptr, out);
          for (int64_t i = 0; i < 2000; ++i) ASSERT_EQ(out.at(0, i), y.at(t, i));
        }
      }
      EXPECT_EQ(y, batched);
    }
  }
}

TEST(RmsNorm, MakeReportsAWeightOfAnotherWidth) {
  Random random(5);
  Cpu cpu;
  const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, 32));
  MakeContext context = cpu.context();
  for (const char* row : rows()) {
    const auto plan = testing::row_named<RmsNormOp>(row).make({NormKind::kGated, 64}, {1, 1}, {id}, context);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().kind, ErrorKind::kCheckpoint);
  }
}

}  // namespace
}  // namespace assay::ops
