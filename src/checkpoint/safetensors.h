// One safetensors file: u64 little-endian header length, JSON header, tensor data. Read through a mapping, nothing is
// copied.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"
#include "checkpoint/mapped_file.h"

namespace assay::checkpoint {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  ConstBytes bytes;  // in the mapping, at any alignment
  std::string file;
};

class SafetensorsFile {
 public:
  // Checks: header length within the file and the limit above; every tensor's dtype known, its offsets inside the file,
  // its size the product of its shape and its dtype; no overlaps, no name twice. kCheckpoint names file, tensor, got
  // and wanted.
  static Result<SafetensorsFile> open(const std::string& path);

  // In name order. Their bytes live as long as this object, wherever it moves.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }
  ConstBytes mapping() const { return mapping_.bytes(); }
  void unmap() { mapping_ = MappedFile(); }  // whoever took the tensors has copied their bytes

 private:
  SafetensorsFile(MappedFile mapping, std::vector<TensorInfo> tensors)
      : mapping_(std::move(mapping)), tensors_(std::move(tensors)) {}

  MappedFile mapping_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace assay::checkpoint
