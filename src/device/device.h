// Device: memory and streams of one processor. The CPU one is here; the CUDA one is made in device_cuda.cc.
//
// Owner: the engine. Thread: any, until a stream is used. Lifetime: longer than every Buffer and Stream it made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "device/backend.h"

namespace assay::device {

// Where enqueued work runs, in order. `handle` is a cpu::ThreadPool* or a cudaStream_t.
struct Stream {
  Backend backend = Backend::kCpu;
  void* handle = nullptr;
};

class Device;

// Owns memory of a device; moves, never copies. Aligned to 256 bytes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceCaps& caps() const = 0;
  // Contents are unspecified. Errors: kResource with the bytes wanted.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  // Synchronous copies between host memory and this device's.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, int byte, size_t bytes) = 0;
  virtual Stream stream() = 0;
  virtual void synchronize() = 0;
  // Runs what `enqueue` puts on stream(). A device that can keeps the work under `key` and replays it the next time:
  // the same key must mean the same launches on the same addresses, and `enqueue` must neither allocate nor wait.
  virtual void run_captured([[maybe_unused]] uint64_t key, const std::function<void()>& enqueue) { enqueue(); }

 private:
  friend class Buffer;
  virtual void release(void* data, size_t bytes) = 0;
};

// Bump allocation out of one Buffer; everything is given back at once by reset().
class Arena {
 public:
  Arena() = default;
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  // 256-byte aligned. CHECKs that it fits: sizes are computed before.
  void* take(size_t bytes);
  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  size_t capacity() const { return buffer_.bytes(); }

  static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace assay::device
