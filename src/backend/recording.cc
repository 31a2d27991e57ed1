#include "backend/recording.h"

#if ASSAY_WITH_CUDA
#include "device/device_cuda.h"
#endif

namespace assay::backend {

#if ASSAY_WITH_CUDA
namespace {

class CudaRecording : public Recording {
 public:
  CudaRecording(device::Stream stream, device::CudaGraph graph) : stream_(stream), graph_(std::move(graph)) {}
  void replay() override { graph_.replay(stream_); }

 private:
  device::Stream stream_;
  device::CudaGraph graph_;
};

}  // namespace
#endif

Result<std::unique_ptr<Recording>> record([[maybe_unused]] device::Device& device,
                                          [[maybe_unused]] const std::function<void()>& enqueue) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) {
    ASSAY_ASSIGN(device::CudaGraph graph, device::CudaGraph::capture(device.stream(), enqueue));
    return std::unique_ptr<Recording>(std::make_unique<CudaRecording>(device.stream(), std::move(graph)));
  }
#endif
  return std::unique_ptr<Recording>();
}

}  // namespace assay::backend
