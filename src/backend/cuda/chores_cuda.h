// The kernels behind HostLink::resolve() and poison().
#pragma once

#include <cuda_runtime.h>

#include "backend/host_link.h"

namespace assay::cuda {

void enqueue_resolve(cudaStream_t stream, int32_t* ids, int32_t count, const int32_t* from, int32_t stride);
void enqueue_poison(cudaStream_t stream, const backend::Places* arrays, int32_t count, std::span<const int32_t> places);

}  // namespace assay::cuda
