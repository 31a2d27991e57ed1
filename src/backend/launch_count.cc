#include "backend/launch_count.h"

#if ASSAY_WITH_CUDA
#include "backend/cuda/launch_count_cuda.h"
#endif

namespace assay::backend {

uint64_t launch_count() {
#if ASSAY_WITH_CUDA
  return cuda::launch_count();
#else
  return 0;
#endif
}

}  // namespace assay::backend
