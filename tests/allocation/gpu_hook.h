// The GPU runtime's calls that take memory or give it back, watched: the linker sends them through here (--wrap).
#pragma once

#include <cstdint>

namespace assay::testing {

// How many there were, by all threads; 0 in a build without CUDA.
int64_t gpu_memory_calls();

}  // namespace assay::testing
