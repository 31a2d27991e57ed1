#include "ops/forced_rows.h"

#include <gtest/gtest.h>

namespace assay::ops {
namespace {

TEST(ForcedRows, AreOfAnOpOfAllOpsOrOfDescsWithAWord) {
  ForcedRows forced;
  ASSERT_TRUE(forced.add("linear", "reference").ok());
  ASSERT_TRUE(forced.add("linear nvfp4", "cpu_portable").ok());
  EXPECT_EQ(forced.row("linear", "n=8 k=16 bf16 bf16 BF16->BF16"), "reference");
  EXPECT_EQ(forced.row("linear", "n=8 k=16 nvfp4 w4a16 BF16->BF16"), "cpu_portable");
  EXPECT_EQ(forced.row("linear", "n=8 k=16 nvfp4x w4a16 BF16->BF16"), "reference") << "whole words only";
  EXPECT_EQ(forced.row("rms_norm", "width=16"), "");
  ForcedRows all;
  ASSERT_TRUE(all.add("*", "reference").ok());
  EXPECT_EQ(all.row("rms_norm", "width=16"), "reference");
}

TEST(ForcedRows, WhatDoesNotExistIsRefusedWithWhatDoes) {
  ForcedRows forced;
  const auto row = forced.add("linear", "abacus");
  ASSERT_FALSE(row.ok());
  EXPECT_EQ(row.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(row.error().wanted.find("cpu_portable"), std::string::npos) << row.error().wanted;
  const auto op = forced.add("sorting nvfp4", "reference");
  ASSERT_FALSE(op.ok());
  EXPECT_EQ(op.error().got, "sorting");
  EXPECT_NE(op.error().wanted.find("rms_norm"), std::string::npos) << op.error().wanted;
  EXPECT_FALSE(forced.add("*", "abacus").ok());
}

TEST(ForcedRows, OneTargetHasOneRow) {
  ForcedRows forced;
  ASSERT_TRUE(forced.add("linear", "reference").ok());
  EXPECT_TRUE(forced.add("linear", "reference").ok());
  const auto second = forced.add("linear", "cpu_portable");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().wanted, "reference");
  EXPECT_FALSE(forced.add("*", "cpu_portable").ok());
}

}  // namespace
}  // namespace assay::ops
