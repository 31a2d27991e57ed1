// From a name to a device: "cpu", or "cuda" and "cuda:INDEX" in builds that have it.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace assay::backend {

// threads: of the CPU's pool; 0: as many as the process may use. Errors: kInvalidArgument for an unknown name or index;
// kUnsupported where the build or the machine lacks it, saying what is missing.
Result<std::unique_ptr<device::Device>> make_device(const std::string& name, int threads);

}  // namespace assay::backend
