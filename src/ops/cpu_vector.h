// The instruction sets of vector_kernel.h as rows use them: names, refusals and functions by activation dtype.
#pragma once

#include <bit>
#include <type_traits>

#include "backend/cpu/convert.h"
#include "ops/impl.h"
#include "ops/refusals.h"
#include "ops/vector_kernel.h"

namespace assay::ops {

inline float to_float(float value) { return value; }
inline float to_float(uint16_t bf16) { return cpu::to_float(cpu::Bf16{bf16}); }

// A loop that compilers vectorise.
template <class E>
bool all_finite(const E* values, int64_t count) {
  using Bits = std::conditional_t<sizeof(E) == 2, uint16_t, uint32_t>;
  constexpr Bits kExponent = sizeof(E) == 2 ? 0x7f80 : 0x7f800000;
  Bits found = 0;
  for (int64_t i = 0; i < count; ++i) found |= (std::bit_cast<Bits>(values[i]) & kExponent) == kExponent ? 1 : 0;
  return found == 0;
}

struct CpuVector {
  const char* row;  // name of the rows made of it
  const VectorKernels& kernels;
  bool (*has)(const device::CpuFeatures&);
  const char* missing;  // the refusal where has() is false

  Refusal refuse(DType activation, const DeviceCaps& caps) const {
    if (!has(caps.cpu)) return missing;
    return refuse_activation(activation);
  }

  // body(functions) for the element type of an activation dtype.
  template <class Body>
  decltype(auto) with(DType activation, const Body& body) const {
    CHECK(activation == DType::kBf16 || activation == DType::kF32, "activation dtype {}", dtype_name(activation));
    return activation == DType::kBf16 ? body(kernels.bf16) : body(kernels.f32);
  }
};

// Constant-initialised: rows are made of them before main.
extern const CpuVector kCpuVectorPortable;
extern const CpuVector kCpuVectorAvx2;
extern const CpuVector kCpuVectorAvx512;

}  // namespace assay::ops
