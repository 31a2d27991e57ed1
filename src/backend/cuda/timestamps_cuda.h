// Timestamps by events; a captured mark becomes a node of the graph.
#pragma once

#include "backend/timestamps.h"

namespace assay::cuda {

std::unique_ptr<backend::Timestamps> make_timestamps(const device::Stream& stream, size_t points);

}  // namespace assay::cuda
