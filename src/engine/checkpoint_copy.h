// Copies of a checkpoint's files in memory, for rows of a CPU that read weights as they are in the file: they stream
// them once a step, and from huge pages that is faster than from the mapped file's scattered ones (base/huge_pages.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"

namespace assay::engine {

// A buffer for each file, to which the checkpoint's tensors point from now on: it must not outlive them. None, and the
// files stay mapped, on other devices and where they would take more than half of what may be used, so that the system
// can take the mapped pages back. Errors: kResource.
Result<std::vector<device::Buffer>> copy_into_memory(checkpoint::Checkpoint& files, device::Device& device,
                                                     double memory_utilization);

int64_t total_bytes(const std::vector<device::Buffer>& copies);

}  // namespace assay::engine
