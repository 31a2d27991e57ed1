// A copy of a small checkpoint, one file of which is damaged at a time; the loader must refuse it with a message of its
// own.
#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/testing.h"
#include "engine/load.h"

namespace assay::damage {

using nlohmann::ordered_json;

// Loads the directory, and gives away only whether that worked.
using Loader = std::function<Result<void>(const std::string& directory)>;

inline Result<void> load_engine(const std::string& directory) {
  engine::LoadOptions options;
  options.model_directory = directory;
  options.threads = 1;
  options.max_sequences = 1;
  auto engine = engine::load(options);
  if (!engine.ok()) return std::move(engine).error();
  return {};
}

// Files damaged by this program so far.
inline int total_count = 0;

class Damaged {
 public:
  Damaged(const std::string& directory, Loader loader) : loader_(std::move(loader)) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (!entry.is_regular_file()) continue;
      const std::string name = entry.path().filename().string();
      std::ifstream file(entry.path(), std::ios::binary);
      files_[name] = {std::istreambuf_iterator<char>(file), {}};
      restore(name);
    }
    const auto whole = loader_(directory_.path());
    EXPECT_TRUE(whole.ok()) << directory << ": " << whole.error().message();
  }

  const std::string& bytes(const std::string& file) const { return files_.at(file); }
  ordered_json json(const std::string& file) const { return ordered_json::parse(files_.at(file)); }
  int count() const { return count_; }

  // With `file` replaced (no bytes: removed), loading must fail within two seconds of CPU time, as a damaged or
  // unsupported file, with a message that begins with the place and holds every one of `wanted`.
  void refuse(const std::string& what, const std::string& file, const std::optional<std::string>& bytes,
              const std::vector<std::string>& wanted) {
    if (bytes) {
      checkpoint::testing::write_file(directory_.file(file), *bytes);
    } else {
      std::filesystem::remove(directory_.file(file));
    }
    const std::clock_t begin = std::clock();
    const auto result = loader_(directory_.path());
    const double cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    restore(file);
    ++count_;
    ++total_count;
    EXPECT_LT(cpu_seconds, 2.0) << what;
    ASSERT_FALSE(result.ok()) << what << ": was accepted";
    const Error& error = result.error();
    EXPECT_TRUE(error.kind == ErrorKind::kCheckpoint || error.kind == ErrorKind::kUnsupported ||
                (error.kind == ErrorKind::kIo && !bytes))
        << what << ": " << error.message();
    EXPECT_FALSE(error.what.empty()) << what;
    EXPECT_TRUE(error.where.starts_with(directory_.path()) || error.where.starts_with(file))
        << what << ": names no file: " << error.message();
    for (const std::string& part : wanted) {
      EXPECT_NE(error.message().find(part), std::string::npos)
          << what << ": '" << part << "' is not in: " << error.message();
    }
  }

 private:
  void restore(const std::string& name) {
    const auto file = files_.find(name);
    if (file == files_.end()) {
      std::filesystem::remove(directory_.file(name));
    } else {
      checkpoint::testing::write_file(directory_.file(name), file->second);
    }
  }

  checkpoint::testing::TempDirectory directory_;
  Loader loader_;
  std::map<std::string, std::string> files_;
  int count_ = 0;
};

inline std::string golden(const std::string& name) { return "tests/goldens/configs/" + name; }

// JSON nested this deep, inside a member so that it is an object.
inline std::string deep_json(int levels) {
  return "{\"a\":" + std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']') +
         "}";
}

}  // namespace assay::damage
