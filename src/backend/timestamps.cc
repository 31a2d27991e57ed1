#include "backend/timestamps.h"

#include <chrono>
#include <vector>

#if ASSAY_WITH_CUDA
#include "backend/cuda/timestamps_cuda.h"
#endif

namespace assay::backend {
namespace {

// The caller's thread is the stream.
class CpuTimestamps : public Timestamps {
 public:
  explicit CpuTimestamps(size_t points) : times_(points) {}
  void mark(size_t point) override { times_[point] = Clock::now(); }
  double microseconds(size_t from, size_t to) const override {
    return std::chrono::duration<double, std::micro>(times_[to] - times_[from]).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> times_;
};

}  // namespace

std::unique_ptr<Timestamps> make_timestamps([[maybe_unused]] const device::Stream& stream, size_t points) {
#if ASSAY_WITH_CUDA
  if (stream.backend == device::Backend::kCuda) return cuda::make_timestamps(stream, points);
#endif
  return std::make_unique<CpuTimestamps>(points);
}

}  // namespace assay::backend
