// Workspace: carves views out of a launch's scratch memory. A default-constructed one only counts, so that one function
// both sizes and places a row's buffers.
#pragma once

#include <cstdint>

#include "ops/impl.h"

namespace assay::ops {

class Workspace {
 public:
  Workspace() = default;  // counts
  explicit Workspace(const View& memory) : base_(static_cast<char*>(memory.data)), capacity_(memory.cols) {}

  // 256-byte aligned, contents unspecified.
  View take(DType dtype, int64_t rows, int64_t cols) {
    const size_t start = used_;
    used_ += device::Arena::round_up(static_cast<size_t>(rows * cols) * dtype_bytes(dtype));
    CHECK(base_ == nullptr || used_ <= static_cast<size_t>(capacity_), "workspace of {} bytes, {} wanted", capacity_,
          used_);
    return View(base_ == nullptr ? nullptr : base_ + start, dtype, rows, cols);
  }

  size_t used() const { return used_; }
  // What is left, as the workspace of a part op.
  View rest() const {
    const int64_t left = capacity_ - static_cast<int64_t>(used_);
    return View(base_ + used_, DType::kU8, 1, left);
  }

 private:
  char* base_ = nullptr;
  int64_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace assay::ops
