#include "device/device_cuda.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "device/probe_cuda.h"

#define CUDA_OK(expression)                                                                                 \
  do {                                                                                                      \
    const cudaError_t status_ = (expression);                                                               \
    CHECK(status_ == cudaSuccess, "CUDA: {} ({})", cudaGetErrorString(status_), cudaGetErrorName(status_)); \
  } while (0)

namespace assay::device {
namespace {

constexpr size_t kMostGraphs = 256;  // kept at once; shapes of decode steps are few

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
  }
  return text;
}

std::string describe_error(cudaError_t status) {
  return fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

cudaStream_t raw(const Stream& stream) {
  CHECK(stream.backend == Backend::kCuda, "a stream of another backend");
  return static_cast<cudaStream_t>(stream.handle);
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  Result<void> open() {
    cudaDeviceProp properties;
    cudaError_t status = cudaSetDevice(index_);
    if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, index_);
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (status != cudaSuccess) {
      return Error{ErrorKind::kUnsupported, "cannot use GPU", std::to_string(index_), describe_error(status), "", ""};
    }
    caps_.backend = Backend::kCuda;
    caps_.name = properties.name;
    caps_.uuid = uuid_text(properties.uuid);
    caps_.memory_bytes = properties.totalGlobalMem;
    caps_.sm = properties.major * 10 + properties.minor;
    caps_.multiprocessors = properties.multiProcessorCount;
    caps_.shared_memory_bytes = properties.sharedMemPerBlockOptin;
    caps_.cache_bytes = static_cast<size_t>(properties.l2CacheSize);
    return {};
  }

  ~CudaDevice() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  const DeviceCaps& caps() const override { return caps_; }

  Result<Buffer> allocate(size_t bytes) override {
    CUDA_OK(cudaSetDevice(index_));
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes == 0 ? 256 : bytes);
    if (status != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed is no sticky error: clear it
      return Error{ErrorKind::kResource,           "out of GPU memory",
                   fmt::format("GPU {}", index_),  describe_error(status),
                   fmt::format("{} bytes", bytes), ""};
    }
    return Buffer(this, data, bytes);
  }

  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes, cudaMemcpyHostToDevice); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes, cudaMemcpyDeviceToHost); }

  void fill(void* to, int byte, size_t bytes) override {
    CUDA_OK(cudaSetDevice(index_));
    CUDA_OK(cudaMemsetAsync(to, byte, bytes, stream_));
  }

  Stream stream() override { return {Backend::kCuda, stream_}; }

  void run_captured(uint64_t key, const std::function<void()>& enqueue) override {
    if (synchronous()) return enqueue();
    const auto found = graphs_.find(key);
    if (found != graphs_.end()) {
      found->second.replay(stream());
      return;
    }
    if (graphs_.size() >= kMostGraphs) {
      synchronize();  // none of them may be running
      graphs_.clear();
    }
    auto captured = CudaGraph::capture(stream(), enqueue);
    CHECK(captured.ok(), "{}", captured.error().message());
    graphs_.emplace(key, std::move(captured).value()).first->second.replay(stream());
  }

  void synchronize() override {
    CUDA_OK(cudaSetDevice(index_));
    CUDA_OK(cudaStreamSynchronize(stream_));
  }

 private:
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    CUDA_OK(cudaSetDevice(index_));
    CUDA_OK(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    CUDA_OK(cudaStreamSynchronize(stream_));
  }

  void release(void* data, size_t) override {
    CUDA_OK(cudaSetDevice(index_));
    CUDA_OK(cudaFree(data));
  }

  int index_;
  cudaStream_t stream_ = nullptr;
  DeviceCaps caps_;
  std::unordered_map<uint64_t, CudaGraph> graphs_;
};

}  // namespace

bool synchronous() {
  static const bool value = [] {
    const char* text = std::getenv("ASSAY_CUDA_SYNC");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return value;
}

std::string GpuInfo::text() const {
  return fmt::format("GPU {}: {}, sm_{}, {:.1f} GiB, {}, {} (built for " ASSAY_CUDA_ARCHS ")", index, name, sm,
                     static_cast<double>(memory_bytes) / (1 << 30), uuid,
                     has_code ? "code present" : "no code for it in this build");
}

std::string GpuReport::text() const {
  if (gpus.empty()) return problem;
  std::string lines;
  for (const GpuInfo& gpu : gpus) lines += (lines.empty() ? "" : "\n") + gpu.text();
  return lines;
}

std::string cuda_versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return fmt::format("driver CUDA {}.{}, runtime CUDA {}.{}", driver / 1000, driver % 1000 / 10, runtime / 1000,
                     runtime % 1000 / 10);
}

GpuReport find_gpus() {
  GpuReport report;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    report.problem = driver == 0
                         ? "no NVIDIA driver on this machine"
                         : fmt::format("the NVIDIA driver knows CUDA {}.{}, this build needs {}.{}", driver / 1000,
                                       driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  } else if (status != cudaSuccess && status != cudaErrorNoDevice) {
    report.problem = "the GPU driver fails: " + describe_error(status);
  } else if (count == 0) {
    report.problem = "no NVIDIA GPU on this machine";
  }
  cudaGetLastError();
  for (int i = 0; report.problem.empty() && i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    report.gpus.push_back({i, properties.name, uuid_text(properties.uuid), properties.major * 10 + properties.minor,
                           properties.totalGlobalMem, cuda_code_present(i)});
  }
  return report;
}

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  const GpuReport report = find_gpus();
  if (report.gpus.empty()) {
    return Error{ErrorKind::kUnsupported, "no usable GPU", "", report.problem, "", "use --device cpu"};
  }
  for (const GpuInfo& gpu : report.gpus) {
    if (gpu.index != index) continue;
    if (!gpu.has_code) {
      return Error{ErrorKind::kUnsupported,      "no code for this GPU", fmt::format("GPU {} ({})", index, gpu.name),
                   fmt::format("sm_{}", gpu.sm), ASSAY_CUDA_ARCHS,       "build with -DASSAY_CUDA_ARCHS for it"};
    }
    auto device = std::make_unique<CudaDevice>(index);
    ASSAY_TRY(device->open());
    return std::unique_ptr<Device>(std::move(device));
  }
  return Error{ErrorKind::kInvalidArgument,
               "no such GPU",
               "",
               std::to_string(index),
               fmt::format("0 to {}", report.gpus.size() - 1),
               ""};
}

CudaGraph::CudaGraph(CudaGraph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

Result<CudaGraph> CudaGraph::capture(const Stream& stream, const std::function<void()>& enqueue) {
  CUDA_OK(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal));
  enqueue();
  cudaGraph_t graph = nullptr;
  cudaError_t status = cudaStreamEndCapture(raw(stream), &graph);
  cudaGraphExec_t executable = nullptr;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (status != cudaSuccess) {
    return Error{ErrorKind::kInternal, "cannot capture a graph", "", describe_error(status), "", ""};
  }
  return CudaGraph(executable);
}

void CudaGraph::replay(const Stream& stream) const {
  CUDA_OK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), raw(stream)));
}

CudaTimer::CudaTimer() {
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  begin_ = begin;
  end_ = end;
}

CudaTimer::~CudaTimer() {
  cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  cudaEventDestroy(static_cast<cudaEvent_t>(end_));
}

void CudaTimer::start(const Stream& stream) { CUDA_OK(cudaEventRecord(static_cast<cudaEvent_t>(begin_), raw(stream))); }
void CudaTimer::stop(const Stream& stream) { CUDA_OK(cudaEventRecord(static_cast<cudaEvent_t>(end_), raw(stream))); }

double CudaTimer::milliseconds() {
  CUDA_OK(cudaEventSynchronize(static_cast<cudaEvent_t>(end_)));
  float elapsed = 0;
  CUDA_OK(cudaEventElapsedTime(&elapsed, static_cast<cudaEvent_t>(begin_), static_cast<cudaEvent_t>(end_)));
  return elapsed;
}

}  // namespace assay::device
