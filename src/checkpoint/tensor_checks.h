// Checks of single tensors that need no other tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace assay::checkpoint {

// A kCheckpoint error at "file: tensor".
Error tensor_error(const TensorInfo& tensor, std::string what, std::string got, std::string wanted);

Result<void> check_shape(const TensorInfo& tensor, const Shape& wanted);
Result<void> check_dtype(const TensorInfo& tensor, DType wanted);

// Index of the first E4M3 byte that is no scale (sign bit set, or NaN 0x7F), if there is one. Vectorises: reads memory
// once.
std::optional<size_t> find_bad_scale(ConstBytes scales);

// E4M3 bytes that are all valid scales.
Result<void> check_block_scales(const TensorInfo& tensor);

// An F32 tensor [] or [1] whose value is finite and above 0.
Result<float> positive_scalar(const TensorInfo& tensor);

}  // namespace assay::checkpoint
