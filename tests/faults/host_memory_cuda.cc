#include <cuda_runtime.h>

#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "backend/cuda/launch.h"
#include "host_memory.h"

namespace assay::faults {
namespace {

bool has_gpu() {
  static const bool found = [] {
    int count = 0;
    const bool some = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    cudaGetLastError();
    return some;
  }();
  return found;
}

// Page-locked memory out of one block, given back when all of it is free; the GPU's stream.
class HostVisibleDevice : public device::Device {
 public:
  explicit HostVisibleDevice(device::Device& real) : real_(real) {
    cuda::check(cudaHostAlloc(reinterpret_cast<void**>(&block_), kBytes, cudaHostAllocDefault), "cudaHostAlloc");
  }
  ~HostVisibleDevice() override { cudaFreeHost(block_); }

  const device::DeviceCaps& caps() const override { return real_.caps(); }
  Result<device::Buffer> allocate(size_t bytes) override {
    if (bytes >= kOnGpu) return real_.allocate(bytes);
    const size_t size = (bytes + 255) / 256 * 256;
    const std::lock_guard lock(mutex_);
    if (used_ + size > kBytes) {
      return Error{ErrorKind::kResource,         "out of page-locked memory", "",
                   std::to_string(used_ + size), std::to_string(kBytes),      ""};
    }
    ++buffers_;
    return device::Buffer(this, block_ + std::exchange(used_, used_ + size), bytes);
  }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void fill(void* to, int byte, size_t bytes) override {
    synchronize();
    std::memset(to, byte, bytes);
  }
  device::Stream stream() override { return real_.stream(); }
  void synchronize() override { real_.synchronize(); }

 private:
  static constexpr size_t kBytes = size_t{1} << 30;
  static constexpr size_t kOnGpu = size_t{64} << 20;  // what is that large is another's work, and nobody looks at it

  void copy(void* to, const void* from, size_t bytes) {
    synchronize();
    std::memcpy(to, from, bytes);
  }
  void release(void*, size_t) override {
    const std::lock_guard lock(mutex_);
    if (--buffers_ == 0) used_ = 0;
  }

  device::Device& real_;
  std::byte* block_ = nullptr;
  std::mutex mutex_;  // cases are made by two threads
  size_t used_ = 0, buffers_ = 0;
};

}  // namespace

void* host_allocate(size_t bytes) {
  if (!has_gpu()) return ::operator new(bytes);
  void* memory = nullptr;
  cuda::check(cudaHostAlloc(&memory, std::max<size_t>(bytes, 1), cudaHostAllocPortable), "cudaHostAlloc");
  return memory;
}

void host_release(void* memory) {
  if (!has_gpu()) return ::operator delete(memory);
  cudaFreeHost(memory);
}

void wait_for(const device::Stream& stream) {
  if (stream.backend != device::Backend::kCuda) return;
  cuda::check(cudaStreamSynchronize(cuda::raw(stream)), "cudaStreamSynchronize");
}

std::unique_ptr<device::Device> host_visible(device::Device& device) {
  if (device.caps().backend != device::Backend::kCuda) return nullptr;
  return std::make_unique<HostVisibleDevice>(device);
}

}  // namespace assay::faults
