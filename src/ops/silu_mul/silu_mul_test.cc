#include "ops/silu_mul/silu_mul.h"

#include <gtest/gtest.h>

#include <bit>

#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::Random;
using testing::Tensor;

Tensor run(Cpu& cpu, const char* row, const Tensor& gate_up) {
  const SiluMulDesc desc{gate_up.cols() / 2, gate_up.dtype()};
  Tensor y(desc.activation, gate_up.rows(), desc.width);
  const auto tokens = static_cast<int32_t>(gate_up.rows());
  cpu.prepare<SiluMulOp>(row, desc, {tokens, 1}).run({{0, tokens, nullptr}, gate_up.view(), y.view()});
  EXPECT_TRUE(y.guards_intact());
  return y;
}

std::vector<const char*> rows(Cpu& cpu, DType activation) {
  return testing::cpu_rows<SiluMulOp>({1, activation}, cpu.device().caps());
}

// The exponential is within 1.5 ulp; then a sum, a quotient and a product: 6 roundings and the last one to the output.
// From exp(-x) = 2^127.5 on, at x = -88.4, it counts as infinite and silu, then less than 89 * 2^-127.5, becomes zero.
TEST(SiluMul, RowsComputeTheFormula) {
  Random random(1);
  for (DType activation : {DType::kBf16, DType::kF32}) {
    for (int64_t width : {1, 16, 127, 3072}) {
      for (int64_t tokens : {1, 5}) {
        Cpu cpu;
        Tensor gate_up(activation, tokens, 2 * width);
        gate_up.fill([&](int64_t t, int64_t i) {
          return (t == 1 ? 60.0f : i % 7 == 0 ? 0.001f : 3.0f) * random.normal();
        });
        for (const char* row : rows(cpu, activation)) {
          const Tensor y = run(cpu, row, gate_up);
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < width; ++i) {
              const double gate = gate_up.at(t, i), up = gate_up.at(t, width + i);
              const double wanted = gate / (1.0 + std::exp(-gate)) * up;
              const double bound =
                  6 * 0x1p-24 * std::abs(wanted) + testing::ulp(activation, wanted) + 89 * 0x1.6bp-128 * std::abs(up);
              ASSERT_NEAR(y.at(t, i), wanted, bound) << row << " gate " << gate << " up " << up;
            }
          }
        }
      }
    }
  }
}

// exp(-x) overflows to infinity far below zero: the result is zero, not NaN. NaN stays NaN.
TEST(SiluMul, ExtremesAreTame) {
  Cpu cpu;
  Tensor gate_up(DType::kF32, 1, 8);
  const float values[] = {-1e30f, -200.0f, 1e30f, std::nanf(""), 2.0f, 2.0f, 1e-3f, 1.0f};
  gate_up.fill([&](int64_t, int64_t i) { return values[i]; });
  for (const char* row : rows(cpu, DType::kF32)) {
    const Tensor y = run(cpu, row, gate_up);
    EXPECT_EQ(std::abs(y.at(0, 0)), 0.0);
    EXPECT_NEAR(y.at(0, 1), 0.0, 1e-30);
    EXPECT_NEAR(y.at(0, 2), 1e27, 1e21);
    EXPECT_TRUE(std::isnan(y.at(0, 3)));
  }
}

// Their order ids are equal. Every kind of float, NaNs too.
TEST(SiluMul, InstructionSetsAgreeBitForBit) {
  Cpu cpu;
  Random random(3);
  for (DType activation : {DType::kBf16, DType::kF32}) {
    Tensor gate_up(activation, 7, 2 * 1003);
    for (int64_t t = 0; t < 7; ++t) {
      for (int64_t i = 0; i < gate_up.cols(); ++i) {
        const float any = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
        gate_up.set(t, i, t < 3 ? any : 20 * random.normal());
      }
    }
    const Tensor wanted = run(cpu, "cpu_portable", gate_up);
    for (const char* row : rows(cpu, activation)) {
      if (row == std::string_view("reference")) continue;
      EXPECT_EQ(run(cpu, row, gate_up), wanted) << row;
    }
  }
}

TEST(SiluMul, PortableBitsDependOnNeitherBatchNorThreads) {
  Random random(2);
  Tensor gate_up(DType::kF32, 19, 2 * 1000);
  gate_up.fill_normal(random);
  Cpu one(1);
  const Tensor batched = run(one, "cpu_portable", gate_up);
  for (int threads : {2, 3}) {
    Cpu cpu(threads);
    EXPECT_EQ(run(cpu, "cpu_portable", gate_up), batched);
  }
  for (int64_t t = 0; t < gate_up.rows(); ++t) {
    Tensor single(DType::kF32, 1, 2000);
    single.fill([&](int64_t, int64_t i) { return static_cast<float>(gate_up.at(t, i)); });
    const Tensor y = run(one, "cpu_portable", single);
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(y.at(0, i), batched.at(t, i));
  }
}

}  // namespace
}  // namespace assay::ops
