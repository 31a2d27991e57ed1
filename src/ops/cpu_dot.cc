#include "ops/cpu_dot.h"

#include <cstring>

#include "backend/cpu/convert.h"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

void to_f32(const ConstView& x, int64_t token, int64_t k, float* out) {
  cpu::with_activation(x.dtype, [&]<class T>() {
    const T* from = x.row<T>(token);
    for (int64_t i = 0; i < k; ++i) out[i] = cpu::to_float(from[i]);
  });
  std::fill(out + k, out + dot_form_elements(DotForm::kF32, k), 0.0f);
}

}  // namespace

Refusal CpuDot::refuse(WeightFormat format, DType activation, const DeviceCaps& caps) const {
  if (!has(caps.cpu)) return missing;
  if (!pairs) return std::nullopt;
  if (activation != DType::kBf16) return "vdpbf16ps needs bf16 activations";
  if (format == WeightFormat::kBf16 || format == WeightFormat::kNvfp4) return std::nullopt;
  return fmt::format("vdpbf16ps needs bf16 or nvfp4 weights, not {}", numeric::weight_format_name(format));
}

std::string_view CpuDot::order(WeightFormat format, DType activation) const {
  if (pairs) return format == WeightFormat::kNvfp4 ? "dot16 vdpbf16ps octets" : "dot16 vdpbf16ps pairs";
  return dot_products_exact(format, activation) ? "dot16 exact" : "dot16 fused";
}

constinit const CpuDot kCpuAvx2{"cpu_avx2", dot_avx2, false, [](const device::CpuFeatures& cpu) { return cpu.avx2; },
                                "the CPU has no AVX2 with FMA and F16C"};
constinit const CpuDot kCpuAvx512{"cpu_avx512", dot_avx512, false,
                                  [](const device::CpuFeatures& cpu) { return cpu.avx512; },
                                  "the CPU has no AVX-512 with BW, VL, DQ and VBMI"};
constinit const CpuDot kCpuAvx512Bf16{"cpu_avx512_bf16", dot_avx512_bf16, true,
                                      [](const device::CpuFeatures& cpu) { return cpu.avx512_bf16; },
                                      "the CPU has no AVX-512 BF16"};

void prepare_token(DotForm form, const ConstView& x, int64_t token, int64_t k, std::byte* out) {
  if (form == DotForm::kF32) return to_f32(x, token, k, reinterpret_cast<float*>(out));
  const auto* from = x.row<uint16_t>(token);
  auto* to = reinterpret_cast<uint16_t*>(out);
  if (form == DotForm::kBf16Planes) return planes_avx512_bf16(from, k, to);
  std::memcpy(to, from, static_cast<size_t>(k) * 2);
  std::fill(to + k, to + dot_form_elements(form, k), uint16_t{0});
}

void prepare_tokens(DotForm form, const ConstView& x, int64_t tokens, int64_t k, std::byte* out,
                    cpu::ThreadPool& pool) {
  constexpr int64_t kElementsPerPiece = 100'000;
  const int64_t bytes = dot_form_bytes(form, k);
  pool.parallel_for(tokens, std::max<int64_t>(1, kElementsPerPiece / k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) prepare_token(form, x, t, k, out + t * bytes);
  });
}

DotRows dot_rows(const numeric::EncodedMatrix& matrix, int64_t first, int64_t count) {
  static_assert(static_cast<int>(DotFormat::kF32) == static_cast<int>(WeightFormat::kF32) &&
                static_cast<int>(DotFormat::kBf16) == static_cast<int>(WeightFormat::kBf16) &&
                static_cast<int>(DotFormat::kF16) == static_cast<int>(WeightFormat::kF16) &&
                static_cast<int>(DotFormat::kNvfp4) == static_cast<int>(WeightFormat::kNvfp4));
  const bool packed = matrix.format == WeightFormat::kNvfp4;
  const int64_t bits = packed ? 4 : matrix.format == WeightFormat::kF32 ? 32 : 16;
  return {static_cast<DotFormat>(matrix.format), matrix.data.data() + first * matrix.cols * bits / 8,
          packed ? matrix.scales.data() + first * (matrix.cols / numeric::kNvfp4Block) : nullptr, count, matrix.cols};
}

}  // namespace assay::ops
