// A weight matrix as the checkpoint stores it: format, sizes and the bytes of its parts. Non-owning.
//
// Formats (shapes row-major [rows = N outputs, cols = K inputs]; y = W x):
//   kF32 kBf16 kF16  data [N, K] of that type
//   kNvfp4           data U8 [N, K/2]: element 2j of a row in the LOW nibble of byte j, element 2j+1 in the high
//   nibble;
//                    scales E4M3 [N, K/16], one per 16 consecutive inputs;
//                    W[n,k] = e2m1(code) * e4m3(scale[n, k/16]) * global_scale        (ModelOpt: weight_scale_2)
//                    input_scale: static activation scale of the w4a4 lane, 0 where the file has none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace assay::numeric {

enum class WeightFormat : uint8_t { kF32, kBf16, kF16, kNvfp4 };

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kNvfp4:
      return "nvfp4";
  }
  return "?";
}

inline constexpr int64_t kNvfp4Block = 16;  // inputs that share one block scale

struct EncodedMatrix {
  std::string name;  // of the tensor in the checkpoint, for messages
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;           // N
  int64_t cols = 0;           // K
  ConstBytes data;            // any alignment
  ConstBytes scales;          // kNvfp4 only
  float global_scale = 1.0f;  // kNvfp4 only
  float input_scale = 0.0f;   // kNvfp4 only, 0 if absent
};

// Bytes in a file: data, block scales and, for NVFP4, the global scale. By sizes and format, whether or not the spans
// point anywhere.
constexpr int64_t encoded_bytes(const EncodedMatrix& matrix) {
  const int64_t count = matrix.rows * matrix.cols;
  switch (matrix.format) {
    case WeightFormat::kF32:
      return 4 * count;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return 2 * count;
    case WeightFormat::kNvfp4:
      return count / 2 + count / kNvfp4Block + static_cast<int64_t>(sizeof(float));
  }
  return 0;
}

}  // namespace assay::numeric
