// The GPU runtime's calls that take memory or give it back, watched: the linker sends them through here (--wrap).
#pragma once

#include <string>

namespace assay::testing {

// How often each was called, by all threads: "cudaMalloc 40", a line each; empty in a build without CUDA.
std::string gpu_memory_calls();

}  // namespace assay::testing
