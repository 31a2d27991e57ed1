// Peak of mma.sync: eight independent accumulators a warp, operands in registers, 32 warps a multiprocessor.
#include <algorithm>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/limits_cuda.h"
#include "backend/cuda/mma.cuh"
#include "device/device_cuda.h"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256, kBlocksEach = 4, kChains = 8, kRounds = 4096;
constexpr double kMmaFlops = 2.0 * 16 * 8 * 16;

__global__ void __launch_bounds__(kThreads) mma_peak(float* out) {
  float sums[kChains][4] = {};
  const uint32_t one = 0x3f803f80u + (threadIdx.x & 1);
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) mma_bf16(sums[chain], one, one, one, one, one, one);
  }
  float total = 0;
  for (int chain = 0; chain < kChains; ++chain)
    total += sums[chain][0] + sums[chain][1] + sums[chain][2] + sums[chain][3];
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

template <class Enqueue>
double median_seconds(const device::Stream& stream, const Enqueue& enqueue) {
  constexpr size_t kRuns = 9;
  device::CudaTimer timer;
  std::vector<double> milliseconds;
  enqueue();
  for (size_t i = 0; i < kRuns; ++i) {
    timer.start(stream);
    enqueue();
    timer.stop(stream);
    milliseconds.push_back(timer.milliseconds());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kRuns / 2, milliseconds.end());
  return milliseconds[kRuns / 2] * 1e-3;
}

}  // namespace

Result<Limits> measure_limits(device::Device& device) {
  const device::Stream stream = device.stream();
  Limits limits;
  const size_t bytes = std::max(8 * device.caps().cache_bytes, size_t{1} << 30);
  ASSAY_ASSIGN(const device::Buffer from, device.allocate(bytes));
  ASSAY_ASSIGN(const device::Buffer to, device.allocate(bytes));
  device.fill(from.data(), 0x35, bytes);
  limits.copy = 2.0 * static_cast<double>(bytes) /
                median_seconds(stream, [&] { device::enqueue_copy(stream, to.data(), from.data(), bytes); });
  const auto blocks = static_cast<unsigned>(device.caps().multiprocessors * kBlocksEach);
  CHECK(size_t{blocks} * kThreads * sizeof(float) <= bytes, "{} blocks", blocks);
  const double seconds = median_seconds(
      stream, [&] { launch("mma_peak", mma_peak, blocks, kThreads, 0, stream, static_cast<float*>(to.data())); });
  limits.mma_bf16 = blocks * (kThreads / 32.0) * kChains * kRounds * kMmaFlops / seconds;
  return limits;
}

}  // namespace assay::cuda
