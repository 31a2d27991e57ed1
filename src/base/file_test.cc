#include "base/file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace assay {
namespace {

TEST(ReadFile, GivesEveryByte) {
  const std::string path = ::testing::TempDir() + "read_file";
  for (const size_t size : {size_t{0}, size_t{1}, size_t{200'000}}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    std::ofstream(path, std::ios::binary) << bytes;
    const auto read = read_file(path);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(*read, bytes);
  }
}

TEST(ReadFile, WhatIsNoFileIsAnErrorThatNamesIt) {
  for (const auto& [path, why] : {std::pair(::testing::TempDir(), "Is a directory"),
                                  std::pair(::testing::TempDir() + "no_such_file", "No such file or directory")}) {
    const auto read = read_file(path);
    ASSERT_FALSE(read.ok()) << path;
    EXPECT_EQ(read.error().kind, ErrorKind::kIo);
    EXPECT_EQ(read.error().where, path);
    EXPECT_EQ(read.error().got, why);
  }
}

}  // namespace
}  // namespace assay
