#include "backend/host_link.h"

#include <algorithm>
#include <cstring>
#include <vector>

#if ASSAY_WITH_CUDA
#include "backend/cuda/host_link_cuda.h"
#endif

namespace assay::backend {
namespace {

// On a CPU work is done when it is enqueued.
class CpuHostLink : public HostLink {
 public:
  bool runs_ahead() const override { return false; }
  Result<MutableBytes> allocate(size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return MutableBytes(memory_.back().get(), bytes);
  }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void resolve(int32_t* ids, int32_t count, const int32_t* from, int32_t stride) override {
    for (int32_t t = 0; t < count; ++t) {
      if (ids[t] < 0) ids[t] = std::max(from[int64_t{-1 - ids[t]} * stride], 0);
    }
  }
  void poison(const Places* arrays, int32_t count, std::span<const int32_t> places) override {
    for (const Places& array : std::span(arrays, static_cast<size_t>(count))) {
      for (int32_t place : places) {
        for (int32_t row = 0; row < array.rows; ++row) {
          std::memset(array.base + place * array.place_stride + row * array.row_stride, 0xff,
                      static_cast<size_t>(array.row_bytes));
        }
      }
    }
  }
  void mark(int) override {}
  void wait(int) override {}

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::unique_ptr<HostLink> make_host_link([[maybe_unused]] device::Device& device) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) return cuda::make_host_link(device);
#endif
  return std::make_unique<CpuHostLink>();
}

}  // namespace assay::backend
