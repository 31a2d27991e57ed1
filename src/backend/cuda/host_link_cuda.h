// HostLink of a CUDA device: page-locked memory, asynchronous copies, events.
#pragma once

#include "backend/host_link.h"

namespace assay::cuda {

std::unique_ptr<backend::HostLink> make_host_link(device::Device& device);

}  // namespace assay::cuda
