#pragma once

#include <cstdint>

namespace assay::cuda {

uint64_t launch_count();

}  // namespace assay::cuda
