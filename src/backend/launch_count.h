// How many kernels this program has launched, those it captured included; 0 in a build for CPUs.
#pragma once

#include <cstdint>

namespace assay::backend {

uint64_t launch_count();

}  // namespace assay::backend
