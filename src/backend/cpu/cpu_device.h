// The CPU as a Device: aligned heap memory, a thread pool as its stream, and what cpuid says.
#pragma once

#include <memory>

#include "device/device.h"

namespace assay::cpu {

device::CpuFeatures detect_features();

// threads <= 0: as many as this process may run on.
std::unique_ptr<device::Device> make_cpu_device(int threads);

}  // namespace assay::cpu
