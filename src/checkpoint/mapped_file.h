// A file mapped read-only into memory. Owner: this object; the mapping's address does not change when it moves.
#pragma once

#include <cstddef>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace assay::checkpoint {

class MappedFile {
 public:
  // kIo if the file cannot be opened or mapped, or is not a regular file. An empty file gives an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  ConstBytes bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace assay::checkpoint
