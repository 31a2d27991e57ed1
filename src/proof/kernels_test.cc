#include "proof/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>

#include "numeric/bf16.h"
#include "numeric/decode.h"
#include "ops/row_list.h"
#include "proof/testing.h"

namespace assay::proof {
namespace {

class Dtypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Dtypes, ::testing::Values(DType::kBf16, DType::kF32),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST_P(Dtypes, EveryRowOfASmallModelPassesAtHalfOfItsBounds) {
  testing::SmallModel model(GetParam());
  KernelOptions options;
  if (const char* seed = std::getenv("ASSAY_SEED")) options.seed = static_cast<uint64_t>(std::atoll(seed));
  const std::vector<Verdict> verdicts = testing::prove(model, options);
  ASSERT_GT(verdicts.size(), 30u);
  if (std::getenv("ASSAY_SHOW") != nullptr) std::fputs(table(verdicts).c_str(), stdout);
  for (const Verdict& verdict : verdicts) {
    if (verdict.state == State::kRefused) continue;
    EXPECT_EQ(verdict.state, State::kPassed)
        << verdict.op << " " << verdict.desc << " " << verdict.row << ": " << verdict.reason;
    EXPECT_LE(verdict.worst.ratio, 0.5) << verdict.op << " " << verdict.desc << " " << verdict.row << ": "
                                        << verdict.worst.where << " got " << verdict.worst.got << " expected "
                                        << verdict.worst.expected << " bound " << verdict.worst.bound;
    EXPECT_GE(verdict.repeats, 2);
    EXPECT_GT(verdict.comparisons, 0);
  }
}

// Fixed blocks may make an infinity of two that cancel within a block: cases must not ask for the NaN.
TEST(Kernels, RowsPassWhereAllInputsAreOneBlock) {
  testing::SmallModel model;
  ops::CaseRandom random(8);
  constexpr auto kNvfp4 = numeric::WeightFormat::kNvfp4;
  const ops::LinearDesc desc{70, 16, kNvfp4, ops::weight_only_lane(kNvfp4), DType::kBf16, DType::kBf16};
  model.instances.add<ops::LinearOp>({desc, {8, 8, 8}, {model.weights.add({{kNvfp4, 70, 16}}, 0.1, random)}});
  int proven = 0;
  for (const Verdict& verdict : testing::prove(model, {}, "linear")) {
    if (verdict.desc != describe(desc) || verdict.state == State::kRefused) continue;
    ++proven;
    EXPECT_EQ(verdict.state, State::kPassed) << verdict.row << ": " << verdict.reason;
  }
  EXPECT_GE(proven, 2);
}

// The definition of linear, but a partial sum keeps 14 bits.
class NarrowSums : public ops::Plan<ops::LinearOp::Args> {
 public:
  explicit NarrowSums(const ops::WeightSource& source) : source_(source) {}
  void enqueue(const ops::LinearOp::Args& args, const ops::Launch&) const override {
    const auto at = [](const ops::ConstView& view, int64_t row, int64_t col) {
      return view.dtype == DType::kF32 ? view.row<float>(row)[col]
                                       : numeric::bf16_to_float(view.row<numeric::Bf16>(row)[col]);
    };
    std::vector<double> weights(static_cast<size_t>(args.x.cols));
    int64_t n = 0;
    for (const numeric::EncodedMatrix& matrix : source_.matrices) {
      for (int64_t row = 0; row < matrix.rows; ++row, ++n) {
        numeric::decode_row(matrix, row, weights.data());
        for (int64_t t = 0; t < args.x.rows; ++t) {
          float sum = 0;
          for (int64_t k = 0; k < args.x.cols; ++k) {
            sum += at(args.x, t, k) * static_cast<float>(weights[static_cast<size_t>(k)]);
            sum = std::bit_cast<float>(std::bit_cast<uint32_t>(sum) & 0xFFFFFC00u);
          }
          const float residual = args.residual.data == nullptr ? 0 : at(args.residual, t, n);
          if (args.y.dtype == DType::kF32) {
            args.y.row<float>(t)[n] = sum + residual;
          } else {
            const numeric::Bf16 rounded = numeric::bf16_from_float(sum);
            args.y.row<numeric::Bf16>(t)[n] =
                args.residual.data == nullptr ? rounded
                                              : numeric::bf16_from_float(numeric::bf16_to_float(rounded) + residual);
          }
        }
      }
    }
  }

 private:
  const ops::WeightSource& source_;
};

TEST(Kernels, ANarrowAccumulatorIsFoundByItsProbe) {
  ops::Impl<ops::LinearOp> row = ops::LinearOp::impls().back();
  row.name = "narrow";
  row.make = [](const ops::LinearDesc&, const ops::Bucket&, const ops::LinearOp::Weights& weights,
                ops::MakeContext& context) -> Result<ops::PlanPtr<ops::LinearOp>> {
    return ops::PlanPtr<ops::LinearOp>(std::make_unique<NarrowSums>(context.weights.source(weights.matrix)));
  };
  ops::test_rows<ops::LinearOp>().push_back(row);
  testing::SmallModel model;
  const std::vector<Verdict> verdicts = testing::prove(model, {}, "linear", "narrow");
  ops::test_rows<ops::LinearOp>().clear();
  ASSERT_FALSE(verdicts.empty());
  int probed = 0;
  for (const Verdict& verdict : verdicts) {
    const double ratio = verdict.ratios[static_cast<size_t>(ops::Evidence::kAccumulator)];
    ++probed;
    EXPECT_EQ(verdict.state, State::kFailed) << verdict.desc;
    EXPECT_GT(ratio, 1) << verdict.desc;
  }
  EXPECT_GE(probed, 4);
}

}  // namespace
}  // namespace assay::proof
