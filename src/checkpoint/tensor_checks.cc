#include "checkpoint/tensor_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "numeric/e4m3.h"

namespace assay::checkpoint {

Error tensor_error(const TensorInfo& tensor, std::string what, std::string got, std::string wanted) {
  return {.kind = ErrorKind::kCheckpoint,
          .what = std::move(what),
          .where = tensor.file + ": " + tensor.name,
          .got = std::move(got),
          .wanted = std::move(wanted),
          .hint = ""};
}

Result<void> check_shape(const TensorInfo& tensor, const Shape& wanted) {
  if (tensor.shape == wanted) return {};
  return tensor_error(tensor, "wrong shape", shape_text(tensor.shape), shape_text(wanted));
}

Result<void> check_dtype(const TensorInfo& tensor, DType wanted) {
  if (tensor.dtype == wanted) return {};
  return tensor_error(tensor, "wrong dtype", std::string(dtype_name(tensor.dtype)), std::string(dtype_name(wanted)));
}

std::optional<size_t> find_bad_scale(ConstBytes scales) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
  uint8_t largest = 0;
  for (size_t i = 0; i < scales.size(); ++i) largest = std::max(largest, bytes[i]);
  // Valid scales are the codes 0x00 to 0x7E; NaN and everything with a sign are above.
  if (largest <= numeric::kE4m3MaxCode) return std::nullopt;
  const auto is_bad = [](uint8_t byte) { return byte > numeric::kE4m3MaxCode; };
  return std::find_if(bytes, bytes + scales.size(), is_bad) - bytes;
}

Result<void> check_block_scales(const TensorInfo& tensor) {
  ASSAY_TRY(check_dtype(tensor, DType::kF8E4M3));
  const std::optional<size_t> bad = find_bad_scale(tensor.bytes);
  if (!bad) return {};
  const auto byte = static_cast<uint8_t>(tensor.bytes[*bad]);
  return tensor_error(tensor, numeric::e4m3_is_nan(byte) ? "block scale is NaN" : "block scale has its sign bit set",
                      fmt::format("byte {:#04x} at index {}", byte, *bad), "0x00 to 0x7e");
}

Result<float> positive_scalar(const TensorInfo& tensor) {
  ASSAY_TRY(check_dtype(tensor, DType::kF32));
  if (!tensor.shape.empty()) ASSAY_TRY(check_shape(tensor, {1}));
  const auto value = load_unaligned<float>(tensor.bytes.data());
  if (!std::isfinite(value) || value <= 0) {
    return tensor_error(tensor, "scale is not a positive number", fmt::format("{}", value), "finite, above 0");
  }
  return value;
}

}  // namespace assay::checkpoint
