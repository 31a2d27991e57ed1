#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/testing.h"

namespace assay::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SafetensorsWriter;
using testing::TempDirectory;
using testing::write_file;

class CheckpointFiles : public ::testing::Test {
 protected:
  void write_tensors(const std::string& file, const std::vector<std::string>& names) {
    SafetensorsWriter writer;
    for (const std::string& name : names) writer.add_bf16(name, {2}, {1, static_cast<float>(name.back())});
    writer.write(directory_.file(file));
  }
  void write_index(const std::string& weight_map) {
    write_file(directory_.file("model.safetensors.index.json"),
               "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + weight_map + "}}");
  }
  std::string refusal() {
    const auto result = Checkpoint::open(directory_.path());
    if (result.ok()) return "opened";
    EXPECT_EQ(result.error().kind, ErrorKind::kCheckpoint);
    return result.error().message();
  }

  TempDirectory directory_;
};

constexpr const char* kTwoShards =
    "\"m.a\":\"one.safetensors\",\"m.b\":\"two.safetensors\",\"m.c\":\"one.safetensors\"";

TEST_F(CheckpointFiles, ShardsEqualTheSingleFile) {
  write_tensors("one.safetensors", {"m.c", "m.a"});
  write_tensors("two.safetensors", {"m.b"});
  write_index(kTwoShards);
  auto sharded = Checkpoint::open(directory_.path());
  ASSERT_TRUE(sharded.ok()) << sharded.error().message();
  const Checkpoint moved = std::move(*sharded);
  write_tensors("model.safetensors", {"m.b", "m.a", "m.c"});
  const auto single = Checkpoint::open(directory_.path());
  ASSERT_TRUE(single.ok()) << single.error().message();
  EXPECT_THAT(single->tensors()[0].file, HasSubstr("model.safetensors"));
  ASSERT_EQ(moved.tensors().size(), 3u);
  EXPECT_EQ(moved.total_bytes(), 12u);
  EXPECT_EQ(single->total_bytes(), 12u);
  for (size_t i = 0; i < 3; ++i) {
    const TensorInfo& a = moved.tensors()[i];
    const TensorInfo* b = single->find(a.name);
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b, &single->tensors()[i]);
    EXPECT_EQ(a.shape, b->shape);
    ASSERT_EQ(a.bytes.size(), b->bytes.size());
    EXPECT_EQ(std::memcmp(a.bytes.data(), b->bytes.data(), a.bytes.size()), 0);
  }
  EXPECT_EQ(moved.find("m"), nullptr);
  EXPECT_EQ(moved.find("m.d"), nullptr);
}

TEST_F(CheckpointFiles, TensorsMoveToCopiesOfTheirFiles) {
  write_tensors("one.safetensors", {"m.c", "m.a"});
  write_tensors("two.safetensors", {"m.b"});
  write_index(kTwoShards);
  auto checkpoint = Checkpoint::open(directory_.path()).value();
  ASSERT_EQ(checkpoint.files(), 2u);
  std::vector<std::vector<std::byte>> copies;
  for (size_t file = 0; file < 2; ++file) {
    const ConstBytes mapping = checkpoint.mapping(file);
    copies.emplace_back(mapping.begin(), mapping.end());
    checkpoint.move_to(file, copies.back().data());
    EXPECT_TRUE(checkpoint.mapping(file).empty());
  }
  const Checkpoint mapped = Checkpoint::open(directory_.path()).value();
  for (const TensorInfo& tensor : mapped.tensors()) {
    const ConstBytes moved = checkpoint.find(tensor.name)->bytes;
    ASSERT_EQ(moved.size(), tensor.bytes.size());
    EXPECT_EQ(std::memcmp(moved.data(), tensor.bytes.data(), moved.size()), 0) << tensor.name;
    EXPECT_TRUE(std::any_of(copies.begin(), copies.end(), [&](const std::vector<std::byte>& copy) {
      return moved.data() >= copy.data() && moved.data() + moved.size() <= copy.data() + copy.size();
    })) << tensor.name;
  }
}

TEST_F(CheckpointFiles, NoWeights) {
  EXPECT_THAT(refusal(), HasSubstr("no weights found"));
  EXPECT_THAT(Checkpoint::open(directory_.file("none")).error().message(), HasSubstr("no such directory"));
}

TEST_F(CheckpointFiles, AMissingShardIsNamed) {
  write_tensors("one.safetensors", {"m.a", "m.c"});
  write_index(kTwoShards);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("two.safetensors: shard is missing"), HasSubstr("m.b")));
}

TEST_F(CheckpointFiles, TheIndexAndTheShardsHoldTheSameNames) {
  write_index(kTwoShards);
  write_tensors("two.safetensors", {"m.b"});
  write_tensors("one.safetensors", {"m.a"});
  EXPECT_THAT(refusal(), HasSubstr("m.c: tensor is missing from its shard"));
  write_tensors("one.safetensors", {"m.c"});
  EXPECT_THAT(refusal(), HasSubstr("m.a: tensor is missing from its shard"));
  for (const char* extra : {"m.A", "m.aa", "m.d"}) {
    write_tensors("one.safetensors", {"m.a", "m.c", extra});
    EXPECT_THAT(refusal(), HasSubstr(std::string(extra) + ": tensor is not in the index")) << extra;
  }
  write_tensors("one.safetensors", {"m.a", "m.b", "m.c"});  // m.b in both shards
  EXPECT_THAT(refusal(), HasSubstr("m.b: tensor is not in the index for this shard"));
}

TEST_F(CheckpointFiles, RefusesABadIndex) {
  write_index("\"m.a\":\"../one.safetensors\"");
  EXPECT_THAT(refusal(), HasSubstr("not a plain file name"));
  write_index("\"m.a\":3");
  EXPECT_THAT(refusal(), HasSubstr("weight_map.m.a: not a file name"));
  write_index("\"m.a\":\"one.safetensors\",\"m.a\":\"two.safetensors\"");
  EXPECT_THAT(refusal(), HasSubstr("a name appears twice"));
  write_file(directory_.file("model.safetensors.index.json"), "{}");
  EXPECT_THAT(refusal(), HasSubstr("weight_map: field is missing"));
}

TEST_F(CheckpointFiles, FindsThePrefixOfTheText) {
  write_tensors("model.safetensors", {"model.embed_tokens.weight"});
  EXPECT_EQ(text_prefix(*Checkpoint::open(directory_.path())), "model.");
  write_tensors("model.safetensors", {"lm_head.weight", "model.language_model.norm.weight", "model.visual.a"});
  EXPECT_EQ(text_prefix(*Checkpoint::open(directory_.path())), "model.language_model.");
}

}  // namespace
}  // namespace assay::checkpoint
