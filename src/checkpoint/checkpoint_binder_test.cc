#include "checkpoint/checkpoint_binder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "checkpoint/tensor_checks.h"
#include "checkpoint/testing.h"
#include "numeric/decode.h"

namespace assay::checkpoint {
namespace {

using numeric::EncodedMatrix;
using numeric::WeightFormat;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SafetensorsWriter;
using testing::TempDirectory;

numeric::Nvfp4Matrix example(int64_t rows, int64_t cols) {
  std::vector<float> values(rows * cols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  return numeric::nvfp4_quantise(values.data(), rows, cols);
}

class BinderTest : public ::testing::Test {
 protected:
  // A binder over the tensors `write` adds.
  CheckpointBinder& bind(const std::function<void(SafetensorsWriter&)>& write, QuantisationHints hints = {}) {
    SafetensorsWriter writer;
    write(writer);
    binder_.reset();
    checkpoint_.reset();
    writer.write(directory_.file("model.safetensors"));
    auto opened = Checkpoint::open(directory_.path());
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    checkpoint_.emplace(std::move(*opened));
    binder_.emplace(*checkpoint_, std::move(hints));
    return *binder_;
  }
  // What binding m [4, 32] says when the NVFP4 parts are changed.
  std::string refusal(const std::function<void(SafetensorsWriter&)>& write, int64_t rows = 4, int64_t cols = 32) {
    const auto result = bind(write).matrix("m", rows, cols);
    if (result.ok()) return "bound";
    EXPECT_EQ(result.error().kind, ErrorKind::kCheckpoint);
    return result.error().message();
  }
  std::string refusal_with_scale_byte(size_t at, uint8_t byte) {
    numeric::Nvfp4Matrix matrix = example(4, 32);
    matrix.scales[at] = byte;
    return refusal([&](SafetensorsWriter& writer) { writer.add_nvfp4("m", matrix); });
  }

  TempDirectory directory_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<CheckpointBinder> binder_;
};

TEST_F(BinderTest, Nvfp4KeepsEveryByte) {
  const numeric::Nvfp4Matrix matrix = example(4, 32);
  CheckpointBinder& binder = bind([&](SafetensorsWriter& writer) {
    writer.add_bf16("m.bias_of_none", {1}, {1});  // moves what follows to an odd multiple of 2
    writer.add_nvfp4("m", matrix, 0.25f);
    writer.add_f32("m.k_scale", {1}, {0.5f});
  });
  const auto bound = binder.matrix("m", 4, 32);
  ASSERT_TRUE(bound.ok()) << bound.error().message();
  EXPECT_EQ(bound->name, "m.weight");
  EXPECT_EQ(bound->format, WeightFormat::kNvfp4);
  EXPECT_EQ(bound->input_scale, 0.25f);
  const EncodedMatrix direct = matrix.view("m");
  std::vector<double> a(32), b(32);
  for (int64_t row = 0; row < 4; ++row) {
    numeric::decode_row(*bound, row, a.data());
    numeric::decode_row(direct, row, b.data());
    EXPECT_EQ(a, b);
  }
  binder.skip("m.bias", "only for its alignment");
  EXPECT_TRUE(binder.finish().ok()) << binder.finish().error().message();
}

TEST_F(BinderTest, ScaleZeroIsValidAndInputScaleOptional) {
  EXPECT_EQ(refusal_with_scale_byte(3, 0x00), "bound");
  EXPECT_EQ(refusal_with_scale_byte(7, 0x7E), "bound");
}

TEST_F(BinderTest, RefusesBadScaleBytes) {
  EXPECT_THAT(refusal_with_scale_byte(7, 0x7F),
              AllOf(HasSubstr("m.weight_scale: block scale is NaN"), HasSubstr("byte 0x7f at index 7")));
  EXPECT_THAT(refusal_with_scale_byte(0, 0xFF), HasSubstr("NaN: got byte 0xff at index 0"));
  EXPECT_THAT(refusal_with_scale_byte(1, 0x80), HasSubstr("sign bit set: got byte 0x80 at index 1"));
}

TEST_F(BinderTest, RefusesBadGlobalAndInputScales) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {0.0f, -1.0f, infinity, std::nanf("")}) {
    numeric::Nvfp4Matrix matrix = example(4, 32);
    EXPECT_THAT(refusal([&](SafetensorsWriter& writer) {
                  writer.add_nvfp4("m", matrix);
                  writer.add_f32("m.input_scale", {1}, {value});
                }),
                HasSubstr("m.input_scale: scale is not a positive number"))
        << value;
    matrix.global_scale = value;
    EXPECT_THAT(refusal([&](SafetensorsWriter& writer) { writer.add_nvfp4("m", matrix); }),
                HasSubstr("m.weight_scale_2: scale is not a positive number"))
        << value;
  }
}

TEST_F(BinderTest, RefusesWrongShapesAndMissingParts) {
  const numeric::Nvfp4Matrix matrix = example(4, 32);
  const auto whole = [&](SafetensorsWriter& writer) { writer.add_nvfp4("m", matrix); };
  EXPECT_THAT(refusal(whole, 8, 32), HasSubstr("m.weight: wrong shape: got [4, 16], wanted [8, 16]"));
  EXPECT_THAT(refusal(whole, 4, 40), HasSubstr("wanted a multiple of 16"));
  const auto without = [&](const char* left_out, Shape scale_shape, Shape global_shape) {
    return refusal([&, left_out](SafetensorsWriter& writer) {
      const std::string skip = left_out;
      if (skip != "weight") writer.add("m.weight", DType::kU8, {4, 16}, matrix.codes);
      if (skip != "weight_scale") writer.add("m.weight_scale", DType::kF8E4M3, scale_shape, matrix.scales);
      if (skip != "weight_scale_2") {
        std::vector<float> globals(global_shape.empty() ? 1 : global_shape[0], 1.0f);
        writer.add_f32("m.weight_scale_2", global_shape, globals);
      }
    });
  };
  EXPECT_EQ(without("", {4, 2}, {}), "bound");
  EXPECT_EQ(without("", {4, 2}, {1}), "bound");
  EXPECT_THAT(without("", {2, 4}, {}), HasSubstr("m.weight_scale: wrong shape: got [2, 4], wanted [4, 2]"));
  EXPECT_THAT(without("", {4, 2}, {2}), HasSubstr("m.weight_scale_2: wrong shape: got [2], wanted [1]"));
  for (const char* part : {"weight", "weight_scale", "weight_scale_2"}) {
    EXPECT_THAT(without(part, {4, 2}, {}), HasSubstr(std::string("m.") + part + ": tensor is missing")) << part;
  }
}

TEST_F(BinderTest, PlainFormats) {
  const std::vector<float> values = {1, -2, 0.5f, 4, 5, 6};
  CheckpointBinder& binder = bind([&](SafetensorsWriter& writer) {
    writer.add_bf16("a.weight", {2, 3}, values);
    writer.add_bf16("odd", {1}, {1});
    writer.add_f32("b.weight", {3, 2}, values);  // at 2 mod 4
    writer.add_f16("c", {2, 3}, values);
    writer.add("d.weight", DType::kI32, {2, 3}, std::vector<int32_t>(6));
  });
  const auto row = [](const EncodedMatrix& matrix, int64_t index) {
    std::vector<float> out(matrix.cols);
    numeric::decode_row(matrix, index, out.data());
    return out;
  };
  EXPECT_THAT(row(*binder.matrix("a", 2, 3), 1), ElementsAre(4, 5, 6));
  EXPECT_NE((checkpoint_->find("b.weight")->bytes.data() - checkpoint_->find("a.weight")->bytes.data()) % 4, 0);
  EXPECT_THAT(row(*binder.matrix("b", 3, 2), 1), ElementsAre(0.5f, 4));
  EXPECT_THAT(row(*binder.plain_matrix("c", 2, 3), 0), ElementsAre(1, -2, 0.5f));
  EXPECT_THAT(binder.matrix("d", 2, 3).error().message(), HasSubstr("d.weight: wrong dtype: got I32"));
}

TEST_F(BinderTest, Vectors) {
  CheckpointBinder& binder = bind([&](SafetensorsWriter& writer) {
    writer.add_bf16("a", {3}, {1, 2, 3});
    writer.add_f32("b", {2}, {0.1f, 100});  // at 2 mod 4
    writer.add_f16("conv", {2, 1, 2}, {1, 2, 3, 4});
    writer.add_bf16("nan", {2}, {1, std::nanf("")});
  });
  EXPECT_THAT(*binder.vector("a", 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(*binder.vector("b", 2), ElementsAre(0.1f, 100));
  EXPECT_THAT(binder.vector("conv", 4).error().message(), HasSubstr("got [2, 1, 2], wanted [4]"));
  EXPECT_THAT(*binder.vector("conv", Shape{2, 1, 2}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(binder.vector("nan", 2).error().message(), HasSubstr("nan: value is not finite: got nan at index 1"));
  EXPECT_THAT(binder.vector("none", 2).error().message(),
              HasSubstr("none: tensor is missing: got nothing, wanted [2]"));
}

TEST_F(BinderTest, DenseTensorsAsMatrices) {
  CheckpointBinder& binder = bind([&](SafetensorsWriter& writer) {
    writer.add_bf16("conv", {2, 1, 3}, {1, 2, 3, 4, 5, 6});
    writer.add_f16("infinite", {2}, {1, std::numeric_limits<float>::infinity()});
  });
  const auto conv = binder.dense("conv", {2, 1, 3}, 2);
  ASSERT_TRUE(conv.ok()) << conv.error().message();
  EXPECT_EQ(conv->format, WeightFormat::kBf16);
  EXPECT_EQ(conv->rows, 2);
  std::vector<float> out(3);
  numeric::decode_row(*conv, 1, out.data());
  EXPECT_THAT(out, ElementsAre(4, 5, 6));
  EXPECT_THAT(binder.dense("infinite", {2}, 1).error().message(), HasSubstr("got inf at index 1"));
  EXPECT_EQ(binder.text_prefix(), "model.");
}

TEST_F(BinderTest, FusedExpertsAreCoveredByTheirSlices) {
  const int64_t experts = 2, rows = 4, cols = 2;
  std::vector<float> values(experts * rows * cols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto write = [&](SafetensorsWriter& writer) {
    writer.add_bf16("experts.gate_up_proj", {experts, rows, cols}, values);
  };
  CheckpointBinder& binder = bind(write);
  const auto slice = [&](int64_t expert, int64_t first) {
    return binder.expert_slice("experts.gate_up_proj", {experts, rows, cols, expert, first, 2});
  };
  std::vector<float> out(cols);
  const auto up = slice(1, 2);
  ASSERT_TRUE(up.ok()) << up.error().message();
  EXPECT_EQ(up->name, "experts.gate_up_proj[1, 2:4]");
  EXPECT_EQ(up->rows, 2);
  numeric::decode_row(*up, 1, out.data());
  EXPECT_THAT(out, ElementsAre(14, 15));
  ASSERT_TRUE(slice(0, 0).ok());
  ASSERT_TRUE(slice(0, 2).ok());
  EXPECT_THAT(binder.finish().error().message(), HasSubstr("experts.gate_up_proj"));  // rows of expert 1 are left
  ASSERT_TRUE(slice(1, 0).ok());
  EXPECT_TRUE(binder.finish().ok());
  EXPECT_DEATH((void)slice(1, 0), "asked for twice");
  const auto wrong = bind(write).expert_slice("experts.gate_up_proj", {4, 2, cols, 0, 0, 2});
  EXPECT_THAT(wrong.error().message(), HasSubstr("wrong shape: got [2, 4, 2], wanted [4, 2, 2]"));
}

TEST_F(BinderTest, EveryTensorIsUsedExactlyOnce) {
  const auto write = [](SafetensorsWriter& writer) {
    for (int i = 0; i < 8; ++i) writer.add_bf16("m." + std::to_string(i), {1}, {1});
    writer.add_bf16("x.rotary_emb.inv_freq", {1}, {1});
  };
  CheckpointBinder& binder = bind(write);
  ASSERT_TRUE(binder.vector("m.3", 1).ok());
  EXPECT_DEATH((void)binder.vector("m.3", 1), "tensor m.3 is asked for twice");
  const Error leftover = binder.finish().error();
  EXPECT_EQ(leftover.kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(leftover.message(), AllOf(HasSubstr("7 tensors"), HasSubstr("m.0, m.1, m.2, m.4, m.5 and 2 more")));
  binder.skip("m.", "test");
  EXPECT_TRUE(binder.finish().ok());
  EXPECT_THAT(binder.notes(), ElementsAre("skipped 7 tensors (14 bytes) of m.*: test"));
}

TEST_F(BinderTest, KeptTensorsAreStillChecked) {
  numeric::Nvfp4Matrix matrix = example(4, 32);
  const auto write = [&](SafetensorsWriter& writer) { writer.add_nvfp4("mtp.a", matrix, 0.5f); };
  CheckpointBinder& good = bind(write);
  EXPECT_TRUE(good.keep("mtp.", "no draft head").ok());
  EXPECT_TRUE(good.finish().ok());
  EXPECT_THAT(good.notes(), ElementsAre("kept 4 tensors (80 bytes) of mtp.*: no draft head"));
  matrix.scales[5] = 0x7F;
  EXPECT_THAT(bind(write).keep("mtp.", "no draft head").error().message(),
              HasSubstr("mtp.a.weight_scale: block scale"));
  matrix.scales[5] = 0x30;
  matrix.global_scale = -1;
  EXPECT_FALSE(bind(write).keep("mtp.", "no draft head").ok());
}

TEST_F(BinderTest, KnownFormatsWithoutARowAreNamed) {
  const std::vector<uint8_t> bytes(64 * 32, 0x38);
  const auto format = [&](const char* weight, DType weight_dtype, const char* scale, DType scale_dtype,
                          Shape scale_shape) {
    const auto result =
        bind([&](SafetensorsWriter& writer) {
          writer.add(std::string("m.") + weight, weight_dtype, {64, 32}, bytes);
          size_t scale_bytes = dtype_bytes(scale_dtype);
          for (int64_t size : scale_shape) scale_bytes *= static_cast<size_t>(size);
          writer.add(std::string("m.") + scale, scale_dtype, scale_shape, std::vector<uint8_t>(scale_bytes));
        }).matrix("m", 64, 32);
    if (result.ok()) return std::string("bound");
    EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(result.error().where, HasSubstr(": m"));
    return result.error().got;
  };
  const DType fp8 = DType::kF8E4M3;
  EXPECT_THAT(format("weight_packed", DType::kU8, "weight_scale", fp8, {64, 4}),
              HasSubstr("NVFP4 as compressed-tensors"));
  EXPECT_THAT(format("weight_packed", DType::kU8, "weight_scale", DType::kU8, {64, 2}), HasSubstr("MXFP4"));
  EXPECT_THAT(format("weight", DType::kU8, "weight_scale", DType::kU8, {64, 2}), HasSubstr("MXFP4"));
  EXPECT_THAT(format("weight", fp8, "weight_scale_inv", DType::kBf16, {1, 1}), HasSubstr("FP8 in 128 x 128 blocks"));
  EXPECT_THAT(format("weight", fp8, "weight_scale", DType::kF32, {}), HasSubstr("FP8 with a scale per tensor"));
  EXPECT_THAT(format("weight", fp8, "weight_scale", DType::kBf16, {64, 1}), HasSubstr("FP8 with a scale per channel"));
}

TEST_F(BinderTest, ConfigListsAreOnlyCompared) {
  const auto write = [](SafetensorsWriter& writer) {
    writer.add_nvfp4("l.0.up_proj", example(4, 32));
    writer.add_bf16("l.0.gate.weight", {1, 1}, {1});
    writer.add_bf16("embed_tokens.weight", {1, 1}, {1});
  };
  const auto difference = [&](std::vector<std::string> excluded, std::map<std::string, std::string> layers) {
    QuantisationHints hints;
    hints.algorithm = "NVFP4";
    hints.excluded = std::move(excluded);
    hints.layer_algorithms = std::move(layers);
    CheckpointBinder& binder = bind(write, hints);
    EXPECT_TRUE(binder.matrix("l.0.up_proj", 4, 32).ok());
    EXPECT_TRUE(binder.matrix("l.0.gate", 1, 1).ok());
    EXPECT_TRUE(binder.matrix("embed_tokens", 1, 1).ok());
    EXPECT_TRUE(binder.finish().ok());
    return binder.hint_differences();
  };
  EXPECT_EQ(difference({"*.gate"}, {}), "");
  EXPECT_THAT(difference({}, {}), HasSubstr("1 plain though not excluded (l.0.gate ..)"));
  EXPECT_THAT(difference({"l.0*"}, {}), HasSubstr("1 quantised though excluded (l.0.up_proj ..)"));
  EXPECT_EQ(difference({}, {{"l.0.up_proj", "W4A16_NVFP4"}}), "");
}

TEST(FindBadScale, FindsTheFirstOneAnywhere) {
  std::vector<std::byte> scales(1000, std::byte{0x7E});
  EXPECT_EQ(find_bad_scale(scales), std::nullopt);
  EXPECT_EQ(find_bad_scale({}), std::nullopt);
  for (size_t at = 0; at < scales.size(); ++at) {
    scales[at] = std::byte{0x7F};
    scales.back() = std::byte{0x80};
    ASSERT_EQ(find_bad_scale(scales), at);
    scales[at] = std::byte{0x00};
    scales.back() = std::byte{0x00};
  }
}

}  // namespace
}  // namespace assay::checkpoint
