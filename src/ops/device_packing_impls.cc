#include "ops/device_packing.h"

#if ASSAY_WITH_CUDA
#include "ops/device_packing_cuda.h"
#include "ops/file_layout_cuda.h"
#include "ops/tile_layout_cuda.h"
#endif

namespace assay::ops {

PackOnDevice device_packing([[maybe_unused]] LayoutId layout, device::Backend backend) {
  if (backend == device::Backend::kCpu) return nullptr;
#if ASSAY_WITH_CUDA
  if (layout == &kCudaFileLayout) return pack_file_on_device;
  if (layout == &kCudaTileLayout) return pack_tiles_on_device;
  if (layout == &kCudaTileAndRowsLayout) return pack_tiles_and_rows_on_device;
  if (layout == &kCudaExpertTileLayout) return pack_expert_tiles_on_device;
#endif
  return nullptr;
}

}  // namespace assay::ops
