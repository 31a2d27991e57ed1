#include "ops/cpu_vector.h"

namespace assay::ops {

constinit const CpuVector kCpuVectorPortable{"cpu_portable", kVectorKernelsPortable,
                                             [](const device::CpuFeatures&) { return true; }, nullptr};
constinit const CpuVector kCpuVectorAvx2{"cpu_avx2", kVectorKernelsAvx2,
                                         [](const device::CpuFeatures& cpu) { return cpu.avx2; },
                                         "the CPU has no AVX2 with FMA and F16C"};
constinit const CpuVector kCpuVectorAvx512{"cpu_avx512", kVectorKernelsAvx512,
                                           [](const device::CpuFeatures& cpu) { return cpu.avx512; },
                                           "the CPU has no AVX-512 with BW, VL, DQ, VBMI and VNNI"};

}  // namespace assay::ops
