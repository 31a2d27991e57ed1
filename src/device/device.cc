#include "device/device.h"

#include <utility>

namespace assay::device {

Buffer::~Buffer() {
  if (data_ != nullptr) device_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void* Arena::take(size_t bytes) {
  const size_t start = used_;
  used_ += round_up(bytes);
  CHECK(used_ <= buffer_.bytes(), "arena of {} bytes, {} wanted", buffer_.bytes(), used_);
  return static_cast<char*>(buffer_.data()) + start;
}

}  // namespace assay::device
