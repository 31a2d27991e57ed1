#include <algorithm>

#include "backend/cuda/chores_cuda.h"
#include "backend/cuda/launch.h"

namespace assay::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPlaces = 256;  // of a launch: they travel as its parameters

struct PlaceList {
  int32_t places[kPlaces];
};

__global__ void __launch_bounds__(kThreads) resolve(int32_t* ids, int32_t count, const int32_t* from, int32_t stride) {
  const int t = blockIdx.x * kThreads + threadIdx.x;
  if (t < count && ids[t] < 0) ids[t] = max(from[int64_t{-1 - ids[t]} * stride], 0);
}

// One block a place and array.
__global__ void __launch_bounds__(kThreads)
    poison(const backend::Places* arrays, const __grid_constant__ PlaceList list) {
  const backend::Places array = arrays[blockIdx.y];
  std::byte* const base = array.base + list.places[blockIdx.x] * array.place_stride;
  const int units = array.row_bytes / 2;
  for (int row = 0; row < array.rows; ++row) {
    auto* to = reinterpret_cast<uint16_t*>(base + row * array.row_stride);
    for (int i = threadIdx.x; i < units; i += kThreads) to[i] = 0xFFFF;
  }
}

}  // namespace

void enqueue_resolve(cudaStream_t stream, int32_t* ids, int32_t count, const int32_t* from, int32_t stride) {
  launch("resolve", resolve, blocks_for(count, kThreads), kThreads, 0, {device::Backend::kCuda, stream}, ids, count,
         from, stride);
}

void enqueue_poison(cudaStream_t stream, const backend::Places* arrays, int32_t count,
                    std::span<const int32_t> places) {
  for (; !places.empty(); places = places.subspan(std::min<size_t>(places.size(), kPlaces))) {
    PlaceList list = {};
    const size_t taken = std::min<size_t>(places.size(), kPlaces);
    std::copy_n(places.begin(), taken, list.places);
    launch("poison", poison, dim3(static_cast<unsigned>(taken), static_cast<unsigned>(count)), kThreads, 0,
           {device::Backend::kCuda, stream}, arrays, list);
  }
}

}  // namespace assay::cuda
