// Matrix products by NVIDIA's cuBLASLt. The library is loaded when it is first asked for, so that a program with these
// calls runs where it is not installed.
//
//   y[t, n] = round( sum_k x[t, k] * w[n, k] )    bf16 inputs, fp32 sums, y bf16 or fp32
//
// A shape has one algorithm, whatever the number of tokens: the library's first proposal for kProposalTokens tokens
// that does not split the sum over k. So bits depend neither on the batch nor on the run.
#pragma once

#include <string>

#include "device/device.h"
#include "device/view.h"

namespace assay::cublaslt {

inline constexpr int64_t kProposalTokens = 512;
inline constexpr size_t kWorkspaceBytes = size_t{32} << 20;
inline constexpr int64_t kAlignment = 16;  // bytes, of all matrices and their rows

struct MatmulShape {
  int64_t n = 0;
  int64_t k = 0;
  DType output = DType::kBf16;
  auto operator<=>(const MatmulShape&) const = default;
};

class Matmul;  // a shape and its algorithm on one GPU; lives as long as the process

// For the GPU of the calling thread. The search takes milliseconds; answers are kept. Errors: kUnsupported: the library
// cannot be loaded, or has no such algorithm.
Result<const Matmul*> find_matmul(const MatmulShape& shape);

// x BF16 [T, k], w BF16 [n, k], y [T, n] of the shape's dtype; workspace: kWorkspaceBytes.
void enqueue_matmul(const Matmul& matmul, const device::ConstView& x, const void* w, const device::View& y,
                    const device::View& workspace, const device::Stream& stream);

// "cuBLASLt 13.1.0", or that there is none.
std::string version_text();

}  // namespace assay::cublaslt
