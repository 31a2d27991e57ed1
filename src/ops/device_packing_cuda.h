// device_packing.h for the CUDA layouts.
#pragma once

#include "ops/device_packing.h"

namespace assay::ops {

Result<void> pack_file_on_device(device::Device& device, const WeightSource& source, std::byte* out);
Result<void> pack_tiles_on_device(device::Device& device, const WeightSource& source, std::byte* out);
Result<void> pack_tiles_and_rows_on_device(device::Device& device, const WeightSource& source, std::byte* out);
Result<void> pack_expert_tiles_on_device(device::Device& device, const WeightSource& source, std::byte* out);

}  // namespace assay::ops
