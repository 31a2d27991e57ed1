// For tests: a temporary directory, and a writer of safetensors files that can also write damaged ones.
#pragma once

#include <fmt/core.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/nvfp4.h"

namespace assay::checkpoint::testing {

// Deleted with its content at the end of the scope.
class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "assay-XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(out.good(), "cannot write {}", path);
}

// A file of this header and data, whatever they hold.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

// Tensors are laid out in the order they are added, without gaps: an F32 after an odd number of BF16 starts at 2 mod 4.
class SafetensorsWriter {
 public:
  template <class T>
  void add(const std::string& name, DType dtype, const Shape& shape, const std::vector<T>& elements) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
    entries_.push_back(fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", name,
                                   dtype_name(dtype), shape_text(shape), begin, data_.size()));
  }
  void add_f32(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    add(name, DType::kF32, shape, values);
  }
  void add_bf16(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    std::vector<numeric::Bf16> encoded;
    for (float value : values) encoded.push_back(numeric::bf16_from_float(value));
    add(name, DType::kBf16, shape, encoded);
  }
  void add_f16(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    std::vector<numeric::F16> encoded;
    for (float value : values) encoded.push_back(numeric::f16_from_float(value));
    add(name, DType::kF16, shape, encoded);
  }
  // base.weight, .weight_scale, .weight_scale_2 and, unless it is 0, .input_scale.
  void add_nvfp4(const std::string& base, const numeric::Nvfp4Matrix& matrix, float input_scale = 0) {
    add(base + ".weight", DType::kU8, {matrix.rows, matrix.cols / 2}, matrix.codes);
    add(base + ".weight_scale", DType::kF8E4M3, {matrix.rows, matrix.cols / numeric::kNvfp4Block}, matrix.scales);
    add_f32(base + ".weight_scale_2", {}, {matrix.global_scale});
    if (input_scale != 0) add_f32(base + ".input_scale", {}, {input_scale});
  }

  std::string bytes() const {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
    for (const std::string& entry : entries_) header += "," + entry;
    return safetensors_bytes(header + "}", data_);
  }
  void write(const std::string& path) const { write_file(path, bytes()); }

 private:
  std::vector<std::string> entries_;
  std::string data_;
};

}  // namespace assay::checkpoint::testing
