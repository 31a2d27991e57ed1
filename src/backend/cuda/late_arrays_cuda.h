#pragma once

#include "backend/late_arrays.h"

namespace assay::cuda {

std::unique_ptr<backend::LateArrays> make_late_arrays(device::Device& device, std::vector<MutableBytes> arrays);

}  // namespace assay::cuda
