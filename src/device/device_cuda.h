// CUDA devices: what this machine has, one of them as a Device, and graphs of its stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace assay::device {

struct GpuInfo {
  int index = 0;
  std::string name;
  std::string uuid;
  int sm = 0;  // 90, 120
  size_t memory_bytes = 0;
  bool has_code = false;  // this binary holds SASS for it

  std::string text() const;
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string problem;  // why there are none: no driver, no GPU; empty when there are some

  // One line a GPU, or the problem.
  std::string text() const;
};

// Never fails: a machine without driver or GPU gives a report that says so.
GpuReport find_gpus();

// "driver CUDA 12.4, runtime CUDA 12.2": the newest CUDA that the driver knows, and what this program is linked with.
std::string cuda_versions();

// Whether ASSAY_CUDA_SYNC=1 is in the environment, for looking into a fault: no step runs from a graph, and each launch
// is waited for, so that what fails is the kernel, op and layer that the message names.
bool synchronous();

// One stream; upload, download and fill are ordered after what was enqueued on it. Errors: kUnsupported without driver,
// GPU or SASS for it, naming what is missing; kInvalidArgument for an index that does not exist.
Result<std::unique_ptr<Device>> make_cuda_device(int index);

// A copy inside the device by a kernel, in the stream's order; whole units of 16 bytes. The yardstick of the bandwidth.
void enqueue_copy(const Stream& stream, void* to, const void* from, size_t bytes);

// Work captured from a stream once and replayed many times. Views captured must stay valid.
class CudaGraph {
 public:
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&&) = delete;
  ~CudaGraph();

  // Runs `enqueue` with the stream in capture mode: nothing in it may allocate or wait.
  static Result<CudaGraph> capture(const Stream& stream, const std::function<void()>& enqueue);
  void replay(const Stream& stream) const;

 private:
  explicit CudaGraph(void* executable) : executable_(executable) {}
  void* executable_ = nullptr;
};

// Milliseconds between two points of a stream.
class CudaTimer {
 public:
  CudaTimer();
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;
  void start(const Stream& stream);
  void stop(const Stream& stream);
  double milliseconds();  // waits for stop

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace assay::device
