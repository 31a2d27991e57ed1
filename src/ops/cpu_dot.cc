#include "ops/cpu_dot.h"

#include <cstring>
#include <limits>

#include "backend/cpu/convert.h"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

// A token to its place, block after block.

void f32_token(const DotPlaces& places, const ConstView& x, int64_t token, std::byte* out) {
  cpu::with_activation(x.dtype, [&]<class T>() {
    const T* from = x.row<T>(token);
    const int64_t elements = places.elements();
    for (int64_t first = 0; first < elements; first += kDotBlock, out += places.block_stride()) {
      auto* to = reinterpret_cast<float*>(out);
      const int64_t count = std::min(kDotBlock, elements - first), given = std::min(count, places.k - first);
      for (int64_t i = 0; i < given; ++i) to[i] = cpu::to_float(from[first + i]);
      std::fill(to + given, to + count, 0.0f);
    }
  });
}

void bf16_token(const DotPlaces& places, const ConstView& x, int64_t token, std::byte* out) {
  const auto* from = x.row<uint16_t>(token);
  auto* to = reinterpret_cast<uint16_t*>(out);
  std::copy_n(from, places.k, to);
  std::fill(to + places.k, to + places.elements(), uint16_t{0});
}

// bf16 as the high half of fp32; sixteen lanes side by side become lane after lane.
void lanes_token(const DotPlaces& places, const ConstView& x, int64_t token, std::byte* out) {
  const auto* from = x.row<uint16_t>(token);
  const int64_t columns = lane_columns(places.k), steps = columns / kDotLanes;
  for (int64_t first = 0; first < places.k; first += columns, out += places.block_stride()) {
    auto* to = reinterpret_cast<uint32_t*>(out);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t at = first + step * kDotLanes, given = std::clamp<int64_t>(places.k - at, 0, kDotLanes);
      for (int64_t lane = 0; lane < kDotLanes; ++lane) {
        to[lane * steps + step] = lane < given ? uint32_t{from[at + lane]} << 16 : 0;
      }
    }
  }
}

}  // namespace

Refusal CpuDot::refuse(WeightFormat format, DType activation, const DeviceCaps& caps) const {
  if (!has(caps.cpu)) return missing;
  if (phased && !dot_fixed(format, activation)) return "only nvfp4 weights with bf16 activations";
  if (!pairs) return std::nullopt;
  if (activation != DType::kBf16) return "vdpbf16ps needs bf16 activations";
  if (format == WeightFormat::kBf16 || format == WeightFormat::kNvfp4) return std::nullopt;
  return fmt::format("vdpbf16ps needs bf16 or nvfp4 weights, not {}", numeric::weight_format_name(format));
}

std::string_view CpuDot::order(WeightFormat format, DType activation) const {
  if (phased) return "decode fixed blocks, prefill dot16 exact";
  if (pairs) return format == WeightFormat::kNvfp4 ? "dot16 vdpbf16ps octets" : "dot16 vdpbf16ps pairs";
  if (dot_fixed(format, activation) || dot_products_exact(format, activation)) return dot_order(format, activation);
  return "dot16 fused";
}

namespace {

bool has_avx2(const device::CpuFeatures& cpu) { return cpu.avx2; }
bool has_avx512(const device::CpuFeatures& cpu) { return cpu.avx512; }
constexpr const char* kNoAvx2 = "the CPU has no AVX2 with FMA and F16C";
constexpr const char* kNoAvx512 = "the CPU has no AVX-512 with BW, VL, DQ, VBMI and VNNI";

}  // namespace

// bf16_tokens and lane_tokens: at most kManyTokens (cases.h), or never.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

constinit const CpuDot kCpuAvx2{"cpu_avx2", dot_avx2, fixed_avx2, false, 1, 64, false, has_avx2, kNoAvx2};
constinit const CpuDot kCpuAvx2Phased{"cpu_avx2_phased", dot_avx2, fixed_avx2, false, 1, 64, true, has_avx2, kNoAvx2};
constinit const CpuDot kCpuAvx512{"cpu_avx512", dot_avx512, fixed_avx512, false,    8,
                                  kNever,       false,      has_avx512,   kNoAvx512};
constinit const CpuDot kCpuAvx512Phased{"cpu_avx512_phased", dot_avx512, fixed_avx512, false, 8, kNever, true,
                                        has_avx512,          kNoAvx512};
constinit const CpuDot kCpuAvx512Bf16{"cpu_avx512_bf16",
                                      dot_avx512_bf16,
                                      nullptr,
                                      true,
                                      1,
                                      kNever,
                                      false,
                                      [](const device::CpuFeatures& cpu) { return cpu.avx512_bf16; },
                                      "the CPU has no AVX-512 BF16"};

StepPlaces CpuDot::places(WeightFormat format, DType activation, int64_t k, const TokenCounts& tokens,
                          int64_t sharing) const {
  const DotForm all = form(format, activation, sharing);
  if (phased) return {{all, tokens.decode, k}, {many(sharing), tokens.total - tokens.decode, k}};
  return {{all, 0, k}, {all, tokens.total, k}};
}

int64_t CpuDot::most_bytes(WeightFormat format, DType activation, int64_t k, int32_t tokens, int64_t sharing) const {
  const auto bytes = [&](int32_t decode, int64_t shared) {
    return places(format, activation, k, {decode, tokens}, shared).bytes();
  };
  return std::max({bytes(0, sharing), bytes(tokens, sharing), bytes(0, 0), bytes(tokens, 0)});
}

void CpuDot::prepare(const StepPlaces& places, const ConstView& x, std::byte* out, cpu::ThreadPool& pool) const {
  const int64_t elements = places.decode.form == DotForm::kFixed ? 16'000 : 100'000;  // worth a thread: some 10 us
  pool.parallel_for(places.tokens(), std::max<int64_t>(1, elements / places.decode.k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) prepare_token(places.of(t), x, t, out + places.at(t));
  });
}

void CpuDot::prepare_token(const DotPlaces& places, const ConstView& x, int64_t token, std::byte* to) const {
  switch (places.form) {
    case DotForm::kF32:
      return f32_token(places, x, token, to);
    case DotForm::kFixed:
      return fixed(x.row<uint16_t>(token), places.k, to, places.block_stride());
    case DotForm::kBf16:
      return bf16_token(places, x, token, to);
    case DotForm::kLanes:
      return lanes_token(places, x, token, to);
    case DotForm::kBf16Planes:
      return planes_avx512_bf16(x.row<uint16_t>(token), places.k, reinterpret_cast<uint16_t*>(to));
  }
}

void prefetch_start(const DotRows& rows) {
  constexpr int64_t kBytes = 4096, kLine = 64;
  const int64_t scales = rows.scales == nullptr ? 0 : rows.rows * rows.k / numeric::kNvfp4Block;
  const int64_t data = rows.rows * dot_bytes(static_cast<WeightFormat>(rows.format), rows.k) - scales;
  for (int64_t at = 0; at < std::min(data, kBytes); at += kLine) __builtin_prefetch(rows.data + at, 0, 2);
  for (int64_t at = 0; at < std::min(scales, kBytes / 8); at += kLine) __builtin_prefetch(rows.scales + at, 0, 2);
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
