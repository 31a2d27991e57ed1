// View: a non-owning 2-D array on some device. Rows are contiguous; consecutive rows are `stride` elements apart.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/dtype.h"

namespace assay::device {

template <class Byte>
struct BasicView {
  using Void = std::conditional_t<std::is_const_v<Byte>, const void, void>;

  Void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements

  BasicView() = default;
  BasicView(Void* data_, DType dtype_, int64_t rows_, int64_t cols_, int64_t stride_ = -1)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), stride(stride_ < 0 ? cols_ : stride_) {}
  // A mutable view reads as a const one.
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>) BasicView(const BasicView<Other>& other)
      : data(other.data), dtype(other.dtype), rows(other.rows), cols(other.cols), stride(other.stride) {}

  explicit operator bool() const { return data != nullptr; }

  template <class T>
  auto* row(int64_t index) const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return static_cast<Element*>(data) + index * stride;
  }

  // Columns [first, first + count) of every row.
  BasicView columns(int64_t first, int64_t count) const {
    CHECK(first >= 0 && first + count <= cols, "columns {}+{} of {}", first, count, cols);
    return BasicView(offset(first), dtype, rows, count, stride);
  }
  // Rows [first, first + count).
  BasicView slice(int64_t first, int64_t count) const {
    CHECK(first >= 0 && first + count <= rows, "rows {}+{} of {}", first, count, rows);
    return BasicView(offset(first * stride), dtype, count, cols, stride);
  }

 private:
  Void* offset(int64_t elements) const {
    using Char = std::conditional_t<std::is_const_v<Byte>, const char, char>;
    return static_cast<Char*>(data) + elements * static_cast<int64_t>(dtype_bytes(dtype));
  }
};

using View = BasicView<char>;
using ConstView = BasicView<const char>;

}  // namespace assay::device
