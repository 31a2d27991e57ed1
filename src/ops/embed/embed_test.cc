#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

Tensor run(Cpu& cpu, const char* row, const EmbedDesc& desc, WeightId id, const std::vector<int32_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  Tensor ids(DType::kI32, count, 1, 0), y(desc.activation, count, desc.hidden);
  ids.fill([&](int64_t t, int64_t) { return static_cast<float>(tokens[static_cast<size_t>(t)]); });
  EmbedOp::Args args{{0, static_cast<int32_t>(count), nullptr}, ids.view(), y.view()};
  cpu.prepare<EmbedOp>(row, desc, {static_cast<int32_t>(count), 1}, {id}).run(args);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// Every value of every row, rounded to fp32 and then to the activation dtype; rows agree bit for bit, as their common
// order id says.
TEST(Embed, GivesTheTableRowsExactly) {
  Random random(1);
  for (WF format : {WF::kF32, WF::kBf16, WF::kF16, WF::kNvfp4}) {
    for (int64_t hidden : {16, 256, 1040}) {
      for (DType activation : {DType::kBf16, DType::kF32}) {
        Cpu cpu(2);
        const EmbedDesc desc{50, hidden, format, activation};
        const WeightId id = cpu.weights().add(testing::random_matrix(random, format, desc.vocab, hidden));
        std::vector<int32_t> tokens{0, 49, 7, 7};
        for (int i = 0; i < 97; ++i) tokens.push_back(static_cast<int32_t>(random.below(50)));
        const Tensor y = run(cpu, "reference", desc, id, tokens);
        EXPECT_EQ(y, run(cpu, "cpu_portable", desc, id, tokens));
        std::vector<float> row(static_cast<size_t>(hidden));
        for (size_t t = 0; t < tokens.size(); ++t) {
          numeric::decode_row(cpu.weights().source(id).matrices[0], tokens[t], row.data());
          for (size_t i = 0; i < row.size(); ++i) {
            const float wanted = activation == DType::kBf16 ? numeric::round_bf16(row[i]) : row[i];
            ASSERT_EQ(y.at(static_cast<int64_t>(t), static_cast<int64_t>(i)), wanted);
          }
        }
      }
    }
  }
  EXPECT_EQ(testing::row_named<EmbedOp>("reference").order({}), testing::row_named<EmbedOp>("cpu_portable").order({}));
}

TEST(Embed, QuietensNans) {
  const std::vector<uint16_t> bits{0x7f80, 0x7f81, 0xff80, 0xff81, 0x7fff, 0x3f80, 0x8000, 0x0001};
  testing::OwnedMatrix table(WF::kBf16, 1, static_cast<int64_t>(bits.size()));
  std::memcpy(table.data_bytes(), bits.data(), bits.size() * 2);
  Cpu cpu;
  const WeightId id = cpu.weights().add(std::move(table));
  for (const char* row : {"reference", "cpu_portable"}) {
    Tensor y = run(cpu, row, {1, static_cast<int64_t>(bits.size()), WF::kBf16, DType::kBf16}, id, {0});
    const std::vector<uint16_t> wanted{0x7f80, 0x7fc1, 0xff80, 0xffc1, 0x7fff, 0x3f80, 0x8000, 0x0001};
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(y.view().row<uint16_t>(0)[i], wanted[i]) << row << " " << i;
  }
}

TEST(Embed, RefusesWhatItCannotDo) {
  const auto& impl = testing::row_named<EmbedOp>("cpu_portable");
  EXPECT_TRUE(impl.can_run({50, 24, WF::kNvfp4, DType::kBf16}, DeviceCaps{}).has_value());
  EXPECT_TRUE(impl.can_run({50, 32, WF::kBf16, DType::kF16}, DeviceCaps{}).has_value());
  EXPECT_FALSE(impl.can_run({50, 24, WF::kF16, DType::kF32}, DeviceCaps{}).has_value());
}

}  // namespace
}  // namespace assay::ops
