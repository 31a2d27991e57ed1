#include "backend/cuda/timestamps_cuda.h"

#include <vector>

#include "backend/cuda/launch.h"

namespace assay::cuda {
namespace {

class EventTimestamps : public backend::Timestamps {
 public:
  EventTimestamps(const device::Stream& stream, size_t points) : stream_(raw(stream)), events_(points) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  EventTimestamps(const EventTimestamps&) = delete;
  EventTimestamps& operator=(const EventTimestamps&) = delete;
  ~EventTimestamps() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void mark(size_t point) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing");
    const unsigned flags = status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    check(cudaEventRecordWithFlags(events_[point], stream_, flags), "cudaEventRecordWithFlags");
  }

  double microseconds(size_t from, size_t to) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[from], events_[to]), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<backend::Timestamps> make_timestamps(const device::Stream& stream, size_t points) {
  return std::make_unique<EventTimestamps>(stream, points);
}

}  // namespace assay::cuda
