// Versions of what runs below this program and may change what a row computes: part of what evidence is keyed by.
#pragma once

#include <string>

#include "device/backend.h"

namespace assay::backend {

// CPU: the kernel and the microcode. GPU: the driver's CUDA version and the runtime's.
std::string versions_below(device::Backend backend);

}  // namespace assay::backend
