#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/testing.h"

namespace assay::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::SafetensorsWriter;
using testing::TempDirectory;
using testing::write_file;

class Safetensors : public ::testing::Test {
 protected:
  Result<SafetensorsFile> open(const std::string& bytes) {
    write_file(path_, bytes);
    return SafetensorsFile::open(path_);
  }
  // The message of the refusal, which must be kCheckpoint.
  std::string refusal(const std::string& bytes) {
    const Result<SafetensorsFile> result = open(bytes);
    if (result.ok()) return "opened";
    EXPECT_EQ(result.error().kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(result.error().where, HasSubstr(path_));
    return result.error().message();
  }
  std::string refusal(const std::string& header, const std::string& data) {
    return refusal(safetensors_bytes(header, data));
  }

  TempDirectory directory_;
  std::string path_ = directory_.file("model.safetensors");
};

TEST_F(Safetensors, ReadsTensorsInNameOrderAtAnyAlignment) {
  SafetensorsWriter writer;
  writer.add_bf16("z", {3}, {1, 2, 3});
  writer.add_f32("a", {2, 1}, {0.5f, -7});
  writer.add_f32("scalar", {}, {9});
  writer.add_f32("empty", {0, 4}, {});
  const auto file = open(writer.bytes());
  ASSERT_TRUE(file.ok()) << file.error().message();
  const auto& tensors = file->tensors();
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::kF32);
  EXPECT_EQ(tensors[0].shape, (Shape{2, 1}));
  EXPECT_EQ((tensors[0].bytes.data() - tensors[3].bytes.data()) % 4, 2);
  EXPECT_EQ(load_unaligned<float>(tensors[0].bytes.data() + 4), -7.0f);
  EXPECT_TRUE(tensors[1].bytes.empty());
  EXPECT_EQ(tensors[2].shape, Shape{});
  EXPECT_EQ(load_unaligned<float>(tensors[2].bytes.data()), 9.0f);
}

// Cut anywhere, a file is refused, and never read beyond its end.
TEST_F(Safetensors, RefusesEveryTruncation) {
  SafetensorsWriter writer;
  writer.add_bf16("a", {4}, {1, 2, 3, 4});
  writer.add_f32("b", {1}, {5});
  const std::string whole = writer.bytes();
  ASSERT_TRUE(open(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_NE(refusal(whole.substr(0, length)), "opened") << length;
  }
  EXPECT_THAT(refusal(whole.substr(0, 7)), HasSubstr("too short"));
  EXPECT_THAT(refusal(whole.substr(0, 20)), HasSubstr("ends inside its header"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 1)),
              AllOf(HasSubstr("b: tensor data lies outside the file"), HasSubstr("wanted within 0 to 11")));
}

TEST_F(Safetensors, RefusesABadHeader) {
  std::string huge = safetensors_bytes("{}", "");
  const uint64_t length = std::numeric_limits<uint64_t>::max();
  std::memcpy(huge.data(), &length, 8);
  EXPECT_THAT(refusal(huge), HasSubstr("beyond the limit"));
  EXPECT_THAT(refusal("{\"a\":", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{\"a\":[]}", ""), HasSubstr("a: entry is not an object"));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", "1234"), HasSubstr("a: entry is incomplete"));
  EXPECT_THAT(refusal(std::string(500, '[') + std::string(500, ']'), ""), HasSubstr("nested too deeply"));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST_F(Safetensors, RefusesBadEntries) {
  const std::string data(8, '\0');
  const auto one = [&](const std::string& text) { return refusal("{\"a\":" + text + "}", data); };
  EXPECT_EQ(one(entry("F32", "[2]", "[0,8]")), "opened");
  EXPECT_THAT(one(entry("F8_E5M2", "[8]", "[0,8]")),
              AllOf(HasSubstr("a: unknown dtype: got F8_E5M2"), HasSubstr("F8_E4M3")));
  EXPECT_THAT(one(entry("F32", "[3]", "[0,8]")),
              AllOf(HasSubstr("got 8 bytes"), HasSubstr("wanted 12 bytes for F32 [3]")));
  EXPECT_THAT(one(entry("F32", "[-1]", "[0,8]")), HasSubstr("bad size in shape"));
  EXPECT_THAT(one(entry("F32", "[2.0]", "[0,8]")), HasSubstr("bad size in shape"));
  EXPECT_THAT(one(entry("F32", "2", "[0,8]")), HasSubstr("shape is not a list"));
  EXPECT_THAT(one(entry("F32", "[4294967296,4294967298]", "[0,8]")), HasSubstr("shape is too large"));
  EXPECT_THAT(one(entry("F32", "[2]", "[8,0]")), HasSubstr("outside the file"));
  EXPECT_THAT(one(entry("F32", "[2]", "[4,12]")), HasSubstr("outside the file"));
  EXPECT_THAT(one(entry("F32", "[2]", "[18446744073709551608,0]")), HasSubstr("outside the file"));
  EXPECT_THAT(one(entry("F32", "[2]", "[0]")), HasSubstr("bad data_offsets"));
  EXPECT_THAT(one(entry("F32", "[2]", "[0,-8]")), HasSubstr("bad data_offsets"));
}

TEST_F(Safetensors, RefusesOverlapsAndDuplicates) {
  const std::string data(8, '\0');
  const std::string first = "{\"a\":" + entry("F32", "[1]", "[0,4]");
  EXPECT_EQ(refusal(first + ",\"b\":" + entry("F32", "[1]", "[4,8]") + "}", data), "opened");
  EXPECT_THAT(refusal(first + ",\"b\":" + entry("F32", "[1]", "[3,7]") + "}", data),
              AllOf(HasSubstr("b: tensor data overlaps"), HasSubstr("got a")));
  EXPECT_THAT(refusal(first + ",\"a\":" + entry("F32", "[1]", "[4,8]") + "}", data),
              AllOf(HasSubstr("a name appears twice"), HasSubstr("got a")));
}

TEST_F(Safetensors, AMissingFileIsAnIoError) {
  const auto result = SafetensorsFile::open(directory_.file("none"));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kIo);
  EXPECT_EQ(SafetensorsFile::open(directory_.path()).error().kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace assay::checkpoint
