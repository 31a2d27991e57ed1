// Layouts that a device can pack by itself, out of the checkpoint's bytes: nothing is packed on the host, and only as
// many bytes as the file holds cross to the device.
#pragma once

#include "device/device.h"
#include "ops/weight.h"

namespace assay::ops {

// Writes layout->bytes(source) bytes to `out`, in the device's memory: the same bytes as layout->pack(). Takes as much
// memory again while it runs, and waits for the work. Errors: those of pack(); kResource.
using PackOnDevice = Result<void> (*)(device::Device& device, const WeightSource& source, std::byte* out);

// Null: this layout is packed on the host.
PackOnDevice device_packing(LayoutId layout, device::Backend backend);

}  // namespace assay::ops
