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
inline constexpr int64_t kDotSums = 32768;   // most outputs of a call

// Rows worth one call: a kernel may turn the tokens for it.
constexpr int64_t dot_call_rows(int64_t tokens) { return kDotSums / tokens / kDotRowBlock * kDotRowBlock; }

enum class DotFormat : uint8_t { kF32, kBf16, kF16, kNvfp4 };

// How a kernel wants activations. fp32 and fixed point come in blocks of kDotBlock columns: a block of all tokens, then
// the next, so that a panel of the matrix meets one stretch of memory.
enum class DotForm : uint8_t {
  kF32,
  kFixed,       // integers of 24 bits and one factor for each 16 (dot_order.h), arranged as the kernel likes
  kBf16,        // bf16, all of k in one block
  kBf16Planes,  // the same; of every 128 elements first those with k % 4 == 0, then 1, 2, 3
  kLanes,       // fp32 in blocks of lane_columns(k) columns: first those with k % 16 == 0, then 1, 2, ..., 15
};

inline constexpr int64_t kDotBlock = 256;
inline constexpr int64_t kFixedBlockBytes = kDotBlock * 7 / 2;  // three bytes, and of each 16 a sum and a factor

// Columns of a block of form kLanes: equal parts of k, whole steps of sixteen.
inline constexpr int64_t kMostLaneColumns = 2048;
constexpr int64_t lane_columns(int64_t k) {
  const int64_t blocks = (k + kMostLaneColumns - 1) / kMostLaneColumns;
  return ((k + blocks - 1) / blocks + 15) / 16 * 16;
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
  DotForm form;
  const std::byte* const* x;  // [count] first block of each
  int64_t count;
  int64_t block_stride;  // bytes from a block of a token to its next
};

// out[t * stride + r] = dot(row r, token t), nvfp4 without the global scale.
using DotFunction = void (*)(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);

// All formats in form kF32, nvfp4 in form kFixed too; bf16 and nvfp4 in form kBf16, in AVX2 in form kLanes too, in the
// order of form kF32.
void dot_avx2(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);
void dot_avx512(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);
// bf16 (form kBf16) and nvfp4 (form kBf16Planes).
void dot_avx512_bf16(const DotRows& rows, const DotTokens& tokens, float* out, int64_t stride);

// bf16 [k] to form kFixed, a block every block_stride bytes.
using FixedFunction = void (*)(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride);
void fixed_avx2(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride);
void fixed_avx512(const uint16_t* x, int64_t k, std::byte* out, int64_t block_stride);
// bf16 [k] to form kBf16Planes.
void planes_avx512_bf16(const uint16_t* x, int64_t k, uint16_t* out);

}  // namespace assay::ops
