// Element types of tensors and views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace assay {

enum class DType : uint8_t { kF32, kBf16, kF16, kF8E4M3, kU8, kI8, kI32, kI64, kF64, kBool };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
      return 1;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kF64:
      return "F64";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

}  // namespace assay
