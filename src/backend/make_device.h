// From a name to a device: "cpu", or "cuda" and "cuda:INDEX" in builds that have it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace assay::backend {

// threads: of the CPU's pool; 0: as many as the process may use. Errors: kInvalidArgument for an unknown name or index;
// kUnsupported where the build or the machine lacks it, saying what is missing.
Result<std::unique_ptr<device::Device>> make_device(const std::string& name, int threads);

// What to say of the machine when a program starts on such a device, a line each: every GPU and whether this build has
// code for it, then driver, runtime and libraries, those missing named. Nothing for a CPU.
std::vector<std::string> describe_machine(device::Backend backend);

}  // namespace assay::backend
