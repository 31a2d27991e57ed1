#include "backend/cuda/host_link_cuda.h"

#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "backend/cuda/chores_cuda.h"
#include "backend/cuda/launch.h"

namespace assay::cuda {
namespace {

class CudaHostLink : public backend::HostLink {
 public:
  explicit CudaHostLink(device::Device& device) : stream_(raw(device.stream())) {
    device.synchronize();  // which makes the device current in this thread
    check(cudaGetDevice(&index_), "cudaGetDevice");
    for (cudaEvent_t& event : events_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  ~CudaHostLink() override {
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (void* memory : memory_) cudaFreeHost(memory);
  }

  bool runs_ahead() const override { return true; }

  Result<MutableBytes> allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMallocHost(&memory, bytes == 0 ? 1 : bytes);
    if (status != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed is no sticky error: clear it
      return Error{ErrorKind::kResource,       "out of page-locked memory",      "host",
                   cudaGetErrorString(status), std::to_string(bytes) + " bytes", ""};
    }
    memory_.push_back(memory);
    std::memset(memory, 0, bytes);
    return MutableBytes(static_cast<std::byte*>(memory), bytes);
  }

  void upload(void* to, const void* from, size_t bytes) override {
    check(cudaSetDevice(index_), "cudaSetDevice");  // whichever thread this is
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
  }
  void resolve(int32_t* ids, int32_t count, const int32_t* from, int32_t stride) override {
    enqueue_resolve(stream_, ids, count, from, stride);
  }
  void poison(const backend::Places* arrays, int32_t count, std::span<const int32_t> places) override {
    enqueue_poison(stream_, arrays, count, places);
  }
  void mark(int index) override { check(cudaEventRecord(events_[index], stream_), "cudaEventRecord"); }
  void wait(int index) override { check(cudaEventSynchronize(events_[index]), "cudaEventSynchronize"); }

 private:
  int index_ = 0;
  cudaStream_t stream_;
  cudaEvent_t events_[kMarks] = {};
  std::vector<void*> memory_;
};

}  // namespace

std::unique_ptr<backend::HostLink> make_host_link(device::Device& device) {
  return std::make_unique<CudaHostLink>(device);
}

}  // namespace assay::cuda
