#include "ops/cases.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_device.h"
#include "ops/all_cases.h"
#include "ops/cpu_dot.h"

namespace assay::ops {
namespace {

TEST(Ulp, IsTheDistanceOfNeighbours) {
  for (const double value : {0.0, 1.0, -1.0, 0.75, 3.999, 1e-38, 0x1p-126, 0x1p-130, 0x1p-1060, 3e38, 1e300}) {
    const int exponent = value == 0 ? -126 : std::max(std::ilogb(value), -126);
    EXPECT_EQ(ulp(DType::kF32, value), std::ldexp(1.0, exponent - 23)) << value;
    EXPECT_EQ(ulp(DType::kBf16, value), std::ldexp(1.0, exponent - 7)) << value;
  }
  EXPECT_EQ(ulp(DType::kF32, INFINITY), 0);
  EXPECT_EQ(ulp(DType::kF32, std::nan("")), 0);
}

TEST(Cases, ActivationsAreEverySecondTokenOfCasesAboutWeightsOfTheirWidth) {
  const auto device = cpu::make_cpu_device(1);
  const CaseWeights weights(*device);
  const std::vector<std::vector<double>> known{{1, 2, 3}, {4, 5, 6}};
  CaseContext context{*device, weights, {8, 8, 8}, Effort::kWeights, 1, known};
  ASSERT_NE(activation_input(context, 0, 3), nullptr);
  EXPECT_EQ(*activation_input(context, 0, 3), known[0]);
  EXPECT_EQ(*activation_input(context, 2, 3), known[1]);
  EXPECT_EQ(*activation_input(context, 4, 3), known[0]);
  EXPECT_EQ(activation_input(context, 1, 3), nullptr);
  EXPECT_EQ(activation_input(context, 0, 4), nullptr);
  context.effort = Effort::kNormal;
  EXPECT_EQ(activation_input(context, 0, 3), nullptr);
}

TEST(Cases, EveryPhaseAndAMixtureOccur) {
  const Bucket bucket{512, 64, 512};
  bool all = false, none = false, some = false;
  for (size_t i = 0; i < 3; ++i) {
    const int32_t decode = decode_tokens(33, i, bucket);
    all |= decode == 33;
    none |= decode == 0;
    some |= decode > 0 && decode < 33;
  }
  EXPECT_TRUE(all && none && some);
  for (size_t i = 0; i < 9; ++i) EXPECT_LE(decode_tokens(257, i, bucket), 128);
}

// A row's way for many tokens is one that a large matrix gets too, in a prompt.
template <class Op>
int64_t most_prompt_tokens(const typename Op::Desc& desc) {
  const auto device = cpu::make_cpu_device(1);
  CaseWeights weights(*device);
  CaseRandom random(1);
  const typename Op::Weights ids = synthetic(desc, weights, random);
  int64_t most = 0;
  for (const auto& made : make_cases(desc, ids, {*device, weights, {512, 16, 512}, Effort::kNormal, 1})) {
    if (made.args.tokens.decode == 0) most = std::max<int64_t>(most, made.args.tokens.total);
  }
  return most;
}

TEST(Cases, ManyTokensAreShownWhateverTheSizes) {
  EXPECT_GE(most_prompt_tokens<LinearOp>({4096, 2048, numeric::WeightFormat::kBf16, Lane::kBf16}), kManyTokens);
  const ExpertsDesc experts{256, 128, 16, 4};
  EXPECT_GE(most_prompt_tokens<ExpertsOp>(experts) * experts.top_k / experts.experts, kManyTokens);
  for (const CpuDot* dot : {&kCpuAvx2, &kCpuAvx2Phased, &kCpuAvx512, &kCpuAvx512Phased, &kCpuAvx512Bf16}) {
    EXPECT_LE(dot->bf16_tokens, kManyTokens) << dot->row;
  }
  for (const CpuDot* dot : {&kCpuAvx2, &kCpuAvx2Phased}) EXPECT_LE(dot->lane_tokens, kManyTokens) << dot->row;
}

TEST(Cases, AByteWrittenOutsideIsFoundWhereverItIs) {
  const auto device = cpu::make_cpu_device(1);
  for (const int64_t at :
       {-int64_t{Bench::kZone}, int64_t{-1}, int64_t{3 * 2}, int64_t{5 * 2 + 1}, int64_t{4 * 5 * 2}}) {
    Bench bench(*device);
    const int out = bench.add("out", DType::kBf16, 4, 3, Role::kOutput, 2);
    bench.place(Bench::kNan);
    auto* const bytes = bench.pointer<unsigned char>(out);
    for (int64_t row = 0; row < 4; ++row) bytes[row * 10] ^= 1;  // an output of each row
    bench.fetch();
    Comparison clean;
    bench.judge_guards(clean);
    EXPECT_TRUE(clean.passed());
    const bool written = at >= 0 && at < 40 && at % 10 < 6;
    bytes[at] ^= 1;
    bench.fetch();
    Comparison comparison;
    bench.judge_guards(comparison);
    EXPECT_EQ(comparison.passed(), written) << at;
  }
}

}  // namespace
}  // namespace assay::ops
