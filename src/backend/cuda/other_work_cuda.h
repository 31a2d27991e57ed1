// The GPU's side of backend/other_work.h.
#pragma once

#include <memory>

#include "backend/other_work.h"

namespace assay::cuda {

// Null where the memory for it is not there.
std::unique_ptr<backend::OtherWork> start_other_work(device::Device& device);

}  // namespace assay::cuda
