#include "backend/late_arrays.h"

#if ASSAY_WITH_CUDA
#include "backend/cuda/late_arrays_cuda.h"
#endif

namespace assay::backend {

std::unique_ptr<LateArrays> make_late_arrays([[maybe_unused]] device::Device& device,
                                             [[maybe_unused]] std::vector<MutableBytes> arrays) {
#if ASSAY_WITH_CUDA
  if (device.caps().backend == device::Backend::kCuda) return cuda::make_late_arrays(device, std::move(arrays));
#endif
  return nullptr;
}

}  // namespace assay::backend
