// What differs between architectures although the source is one: how many registers the compiler needs, and how many
// blocks there is room for.
#pragma once

namespace assay::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr bool kSm120 = true;
#else
inline constexpr bool kSm120 = false;
#endif

}  // namespace assay::cuda
