// Files that the tests of this folder read, relative to the repository root.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace assay::text {

constexpr const char* kPocket = "models/pocket";

inline std::string test_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path << ": run the tests from the repository root";
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline nlohmann::ordered_json test_json(const std::string& path) {
  return nlohmann::ordered_json::parse(test_file(path), nullptr, false);
}

}  // namespace assay::text
