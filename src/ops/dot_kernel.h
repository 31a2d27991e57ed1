// The seam of the CPU rows that multiply by weights (linear, experts, router): what an instruction set brings.
//
// A kernel turns `rows` consecutive rows of one matrix and up to kDotTokens tokens into dot products. It reads weights
// in the checkpoint's layout and activations in the form it asks for, which rows prepare once per launch. Its order of
// additions depends on (format, activation, k) alone: never on the number of rows or tokens of a call.
//
// Kernel files (`*_kernels_<instruction set>.cc`) are compiled with their own flags. They see this header and
// intrinsics only, so that no inline function of the rest of the program is ever emitted with their instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay::ops {

inline constexpr int64_t kDotTokens = 128;   // most tokens of a call
inline constexpr int64_t kDotRowBlock = 16;  // rows that share a decoded panel: a good grain for splitting

enum class DotFormat : uint8_t { kF32, kBf16, kF16, kNvfp4 };

// How a kernel wants one token's activations, all zero from k to dot_form_elements(form, k):
enum class DotForm : uint8_t {
  kF32,         // fp32
  kBf16,        // bf16
  kBf16Planes,  // bf16, of every 128 elements first those with k % 4 == 0, then 1, 2, 3
};

constexpr int64_t dot_form_elements(DotForm form, int64_t k) {
  const int64_t step = form == DotForm::kF32 ? 16 : form == DotForm::kBf16 ? 32 : 128;
  return (k + step - 1) / step * step;
}

constexpr int64_t dot_form_bytes(DotForm form, int64_t k) {
  return dot_form_elements(form, k) * (form == DotForm::kF32 ? 4 : 2);
}

// Where element k of a token is.
constexpr int64_t dot_form_index(DotForm form, int64_t k) {
  return form == DotForm::kBf16Planes ? k / 128 * 128 + k % 4 * 32 + k % 128 / 4 : k;
}

// Rows of a matrix as stored (numeric/weight_format.h), at any address.
struct DotRows {
  DotFormat format;
  const std::byte* data;    // of the first row
  const std::byte* scales;  // of the first row; nvfp4 only
  int64_t rows;
  int64_t k;
};

struct DotTokens {
  const std::byte* const* x;  // [count] in the kernel's form
  int64_t count;
};

// out[t * stride + r] = dot(row r, token t), nvfp4 without the global scale.
using DotFunction = void (*)(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);

// All formats; form kF32.
void dot_avx2(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);
void dot_avx512(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);
// bf16 (form kBf16) and nvfp4 (form kBf16Planes).
void dot_avx512_bf16(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);

// bf16 [k] to form kBf16Planes.
void planes_avx512_bf16(const uint16_t* x, int64_t k, uint16_t* out);

}  // namespace assay::ops
