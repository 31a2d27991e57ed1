#include "ops/work.h"

#include <gtest/gtest.h>

namespace assay::ops {
namespace {

using numeric::WeightFormat;

std::vector<int32_t> read_host(const void* data, int64_t count) {
  const auto* values = static_cast<const int32_t*>(data);
  return {values, values + count};
}

std::vector<int32_t> unread(const void*, int64_t) {
  ADD_FAILURE() << "read";
  return {};
}

TEST(Work, OfLinearFollowsFormatAndResidual) {
  LinearDesc desc{32, 64, WeightFormat::kBf16, Lane::kBf16, DType::kBf16, DType::kF32};
  LinearOp::Args args;
  args.tokens = {0, 3, nullptr};
  EXPECT_EQ(work(desc, args, unread).bytes, 2 * 32 * 64 + 3 * (2 * 64 + 4 * 32));
  EXPECT_EQ(work(desc, args, unread).flops, 2 * 3 * 32 * 64);
  float residual = 0;
  args.residual = {&residual, DType::kF32, 3, 32};
  EXPECT_EQ(work(desc, args, unread).bytes, 2 * 32 * 64 + 3 * (2 * 64 + 2 * 4 * 32));
  desc.format = WeightFormat::kNvfp4;  // half a byte, a scale for 16, and one global scale
  EXPECT_EQ(work(desc, args, unread).bytes, 32 * 64 * 9 / 16 + 4 + 3 * (2 * 64 + 2 * 4 * 32));
}

TEST(Work, OfExpertsCountsThoseThatWereChosen) {
  const ExpertsDesc desc{64, 32, 8, 2, WeightFormat::kBf16, Lane::kBf16, DType::kBf16};
  const int32_t ids[] = {3, 5, -1, 5, 7, -1};  // two tokens, rows of stride 3
  ExpertsOp::Args args;
  args.tokens = {2, 2, nullptr};
  args.ids = {ids, DType::kI32, 2, 2, 3};
  EXPECT_EQ(work(desc, args, read_host).bytes, 3 * (2 * 3 * 32 * 64) + 2 * 2 * 64 * 2);
  EXPECT_EQ(work(desc, args, read_host).flops, 2 * 2 * 2 * 3 * 32 * 64);
}

TEST(Work, OfAttentionReadsTheCacheOfASequenceOnce) {
  const AttentionDesc desc{4, 2, 16, 0.25f, true, DType::kBf16, DType::kBf16};
  const int32_t starts[] = {0, 1, 4}, positions[] = {9, 20, 21, 22};  // one token at 10 positions, three up to 23
  AttentionOp::Args args;
  args.batch.tokens = {1, 4, nullptr};
  args.batch.sequences = 2;
  args.batch.query_start = starts;
  args.batch.positions = positions;
  const Work both = work(desc, args, read_host);
  EXPECT_EQ(both.bytes, 2 * (2 * (10 + 23) * 2 * 16) + 2 * (3 * 4 * 4 * 16));
  EXPECT_EQ(both.flops, 4 * (10 + 21 + 22 + 23) * 4 * 16);
}

TEST(Work, OfGatedDeltaReadsNoStateThatIsNotThere) {
  const GatedDeltaDesc desc{2, 4, 8, 16, DType::kBf16};
  const int32_t fresh[] = {-1}, continued[] = {0};
  GatedDeltaOp::Args args;
  args.batch.tokens = {1, 1, nullptr};
  args.batch.sequences = 1;
  args.batch.state_read = fresh;
  const double state = 4 * 4 * 8 * 16;
  const double first = work(desc, args, read_host).bytes;
  EXPECT_EQ(first, state + 4 * (2 * 2 * 8) + 2 * (2 * 4 * 16));
  args.batch.state_read = continued;
  EXPECT_EQ(work(desc, args, read_host).bytes, first + state);
}

}  // namespace
}  // namespace assay::ops
