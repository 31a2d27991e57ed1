// Spans of raw bytes, and reads from addresses of any alignment.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace assay {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// Tensors of a file start at any offset, also 2 mod 4 for F32.
template <class T>
T load_unaligned(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

}  // namespace assay
