// Which hardware runs an op, and what that hardware can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace assay::device {

enum class Backend : uint8_t { kCpu, kCuda };

constexpr std::string_view backend_name(Backend backend) { return backend == Backend::kCpu ? "cpu" : "cuda"; }

// Instruction sets of the CPU, as the operating system lets us use them.
struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, VL, DQ, VBMI, VNNI
  bool avx512_bf16 = false;  // vdpbf16ps
};

// What a row's can_run() may ask. Filled once at start by the backend.
struct DeviceCaps {
  Backend backend = Backend::kCpu;
  std::string name;  // "AMD EPYC ...", "NVIDIA H200"
  std::string uuid;  // of the device; empty on a CPU
  size_t memory_bytes = 0;
  CpuFeatures cpu;
  int sm = 0;                      // 90 or 120; 0 on a CPU
  int multiprocessors = 0;         // SMs, or CPU threads of the pool
  size_t shared_memory_bytes = 0;  // a block may use
  size_t cache_bytes = 0;          // L2 of a GPU, L3 of a CPU
};

}  // namespace assay::device
