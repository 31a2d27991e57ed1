// What tests and benchmarks of rows share: random weights in every format, tensors with guard zones, a weight provider,
// and running a row by its name on a CPU device. Used by tests and bench/ only; needs no test framework.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "base/huge_pages.h"
#include "numeric/bf16.h"
#include "numeric/decode.h"
#include "numeric/f16.h"
#include "numeric/nvfp4.h"
#include "ops/impl.h"
#include "ops/select.h"

namespace assay::ops::testing {

using numeric::EncodedMatrix;
using numeric::WeightFormat;

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint64_t>(limit)); }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);  // 24 random bits
  }
  // Sum of twelve uniforms: near enough to a standard normal, and free of libm.
  float normal() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += uniform(0.0f, 1.0f);
    return sum;
  }

 private:
  uint64_t state_;
};

// Allocates as the engine's weights are: in huge pages where there is much.
template <class T>
struct WeightMemory {
  using value_type = T;
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    void* memory = bytes < kHugePageBytes ? std::malloc(bytes) : allocate_huge(bytes);
    CHECK(memory != nullptr, "{} bytes", bytes);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  bool operator==(const WeightMemory&) const = default;
};

// A matrix with the bytes it points to. Movable only: the spans point into the vectors' heap memory. Bytes start at
// an odd address, as tensors of a file may.
struct OwnedMatrix {
  static constexpr size_t kSkew = 1;
  std::vector<std::byte, WeightMemory<std::byte>> data;
  std::vector<std::byte, WeightMemory<std::byte>> scales;
  EncodedMatrix matrix;

  OwnedMatrix(WeightFormat format, int64_t rows, int64_t cols, std::string name = "test") {
    matrix.name = std::move(name);
    matrix.format = format;
    matrix.rows = rows;
    matrix.cols = cols;
    const bool packed = format == WeightFormat::kNvfp4;
    const int64_t bits = packed ? 4 : format == WeightFormat::kF32 ? 32 : 16;
    data.resize(static_cast<size_t>(rows * cols * bits / 8) + kSkew);
    matrix.data = ConstBytes(data).subspan(kSkew);
    if (packed) {
      CHECK(cols % numeric::kNvfp4Block == 0, "{} columns", cols);
      scales.resize(static_cast<size_t>(rows * cols / numeric::kNvfp4Block) + kSkew);
      matrix.scales = ConstBytes(scales).subspan(kSkew);
    }
  }
  OwnedMatrix(OwnedMatrix&&) = default;
  OwnedMatrix& operator=(OwnedMatrix&&) = default;
  std::byte* data_bytes() { return data.data() + kSkew; }
  std::byte* scale_bytes() { return scales.data() + kSkew; }
};

// values [rows, cols] in a format; NVFP4 is quantised the ModelOpt way, with its own global scale.
inline OwnedMatrix encode(WeightFormat format, int64_t rows, int64_t cols, std::span<const float> values) {
  CHECK(static_cast<int64_t>(values.size()) == rows * cols, "{} values", values.size());
  OwnedMatrix owned(format, rows, cols);
  if (format == WeightFormat::kNvfp4) {
    const numeric::Nvfp4Matrix quantised = numeric::nvfp4_quantise(values.data(), rows, cols);
    std::memcpy(owned.data_bytes(), quantised.codes.data(), quantised.codes.size());
    std::memcpy(owned.scale_bytes(), quantised.scales.data(), quantised.scales.size());
    owned.matrix.global_scale = quantised.global_scale;
    return owned;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = format == WeightFormat::kF16 ? numeric::f16_from_float(values[i]).bits
                                                       : numeric::bf16_from_float(values[i]).bits;
    if (format == WeightFormat::kF32) {
      std::memcpy(owned.data_bytes() + i * 4, &values[i], 4);
    } else {
      std::memcpy(owned.data_bytes() + i * 2, &half, 2);
    }
  }
  return owned;
}

// Normal values with standard deviation `scale`; for NVFP4 all 16 codes and all finite non-negative block scales, 0x00
// among them, are equally likely, and global_scale brings the values to about that size.
inline OwnedMatrix random_matrix(Random& random, WeightFormat format, int64_t rows, int64_t cols, float scale = 0.1f) {
  if (format != WeightFormat::kNvfp4) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = scale * random.normal();
    return encode(format, rows, cols, values);
  }
  OwnedMatrix owned(format, rows, cols);
  for (size_t i = 0; i < owned.matrix.data.size(); ++i)
    owned.data_bytes()[i] = static_cast<std::byte>(random.below(256));
  for (size_t i = 0; i < owned.matrix.scales.size(); ++i) {
    owned.scale_bytes()[i] = static_cast<std::byte>(random.below(numeric::kE4m3MaxCode + 1));
  }
  owned.matrix.global_scale = scale / 256.0f * random.uniform(0.5f, 2.0f);
  return owned;
}

// The exact values of a matrix, [rows, cols].
inline std::vector<double> decoded(const EncodedMatrix& matrix) {
  std::vector<double> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) numeric::decode_row(matrix, row, values.data() + row * matrix.cols);
  return values;
}

// A provider that owns its weights and packs on demand.
class TestWeights : public WeightProvider {
 public:
  WeightId add(std::vector<OwnedMatrix> matrices) {
    auto entry = std::make_unique<Entry>();
    entry->owned = std::move(matrices);
    entry->source.name = "weight" + std::to_string(entries_.size());
    for (const OwnedMatrix& owned : entry->owned) entry->source.matrices.push_back(owned.matrix);
    entries_.push_back(std::move(entry));
    return WeightId{static_cast<int32_t>(entries_.size()) - 1};
  }
  WeightId add(OwnedMatrix matrix) {
    std::vector<OwnedMatrix> one;
    one.push_back(std::move(matrix));
    return add(std::move(one));
  }

  const WeightSource& source(WeightId id) const override { return entry(id).source; }

  Result<const PackedWeight*> get(WeightId id, LayoutId layout) override {
    Entry& found = entry(id);
    for (const auto& packed : found.packed) {
      if (packed->layout == layout) return static_cast<const PackedWeight*>(packed.get());
    }
    auto packed = std::make_unique<PackedWeight>();
    packed->layout = layout;
    packed->source = &found.source;
    packed->bytes = layout->bytes(found.source);
    if (packed->bytes > 0) {
      const size_t rounded = (packed->bytes + 255) / 256 * 256;
      found.memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(256, rounded)), &std::free);
      ASSAY_TRY(layout->pack(found.source, MutableBytes(found.memory.back().get(), packed->bytes)));
      packed->data = found.memory.back().get();
    }
    found.packed.push_back(std::move(packed));
    return static_cast<const PackedWeight*>(found.packed.back().get());
  }

 private:
  struct Entry {
    std::vector<OwnedMatrix> owned;
    WeightSource source;
    std::vector<std::unique_ptr<PackedWeight>> packed;
    std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory;
  };
  Entry& entry(WeightId id) const { return *entries_.at(static_cast<size_t>(id)); }
  std::vector<std::unique_ptr<Entry>> entries_;
};

// An array [rows, cols] of F32, BF16 or I32 with `pad` guard elements after each row, all poisoned with 0xFF bytes (NaN
// as a float, -1 as an integer) until set.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t cols, int64_t pad = 3)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + pad) {
    bytes_.assign(static_cast<size_t>(rows * stride_) * dtype_bytes(dtype), std::byte{0xFF});
  }

  View view() { return View(bytes_.data(), dtype_, rows_, cols_, stride_); }
  ConstView view() const { return ConstView(bytes_.data(), dtype_, rows_, cols_, stride_); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }

  double at(int64_t row, int64_t col) const {
    const std::byte* from = element(row, col);
    if (dtype_ == DType::kF32) return load_unaligned<float>(from);
    if (dtype_ == DType::kI32) return load_unaligned<int32_t>(from);
    return numeric::bf16_to_float(load_unaligned<numeric::Bf16>(from));
  }
  // Rounds to the dtype.
  void set(int64_t row, int64_t col, float value) {
    std::byte* to = const_cast<std::byte*>(element(row, col));
    if (dtype_ == DType::kF32) {
      std::memcpy(to, &value, 4);
    } else if (dtype_ == DType::kI32) {
      const int32_t integer = static_cast<int32_t>(value);
      std::memcpy(to, &integer, 4);
    } else {
      const numeric::Bf16 half = numeric::bf16_from_float(value);
      std::memcpy(to, &half, 2);
    }
  }
  template <class Value>  // Value(row, col) -> float
  Tensor& fill(const Value& value) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) set(row, col, value(row, col));
    }
    return *this;
  }
  Tensor& fill_normal(Random& random, float scale = 1.0f) {
    return fill([&](int64_t, int64_t) { return scale * random.normal(); });
  }

  // Nothing was written beside the columns.
  bool guards_intact() const {
    for (int64_t row = 0; row < rows_; ++row) {
      const std::byte* end = element(row, 0) + static_cast<size_t>(stride_) * dtype_bytes(dtype_);
      for (const std::byte* p = element(row, cols_); p != end; ++p) {
        if (*p != std::byte{0xFF}) return false;
      }
    }
    return true;
  }
  // Bitwise, guards included.
  bool operator==(const Tensor& other) const { return bytes_ == other.bytes_; }

 private:
  const std::byte* element(int64_t row, int64_t col) const {
    return bytes_.data() + static_cast<size_t>(row * stride_ + col) * dtype_bytes(dtype_);
  }
  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<std::byte> bytes_;
};

// The first row of `joined` that is not that of `head` (its first `count` rows) or of `tail` (the others); the number
// of rows if there is none.
inline int64_t first_other_row(const Tensor& joined, const Tensor& head, int64_t count, const Tensor& tail) {
  for (int64_t row = 0; row < joined.rows(); ++row) {
    const Tensor& wanted = row < count ? head : tail;
    for (int64_t col = 0; col < joined.cols(); ++col) {
      if (joined.at(row, col) != wanted.at(row, col)) return row;
    }
  }
  return joined.rows();
}

// Distance of neighbouring values of a dtype around |value|.
inline double ulp(DType dtype, double value) {
  if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
  const int exponent = std::max(std::ilogb(std::max(std::abs(value), 0x1p-126)), -126);
  return std::ldexp(1.0, exponent - (dtype == DType::kBf16 ? 7 : 23));
}

// How far an fp32 dot product over k in an order of a CPU row may be from the exact one. dot_order.h, fused or not, and
// pairs: a product is rounded once and then passes through ceil(k / 16) sums of its lane and 4 folds; one more rounding
// for a global scale. Octets: 8 sums within one, one a step of 128 columns, 4 folds and the scale; fixed blocks fewer.
inline double dot_error_bound(int64_t k, double sum_of_magnitudes) {
  const int64_t lanes = (k + 15) / 16 + 6, octets = 8 + (k + 127) / 128 + 5;
  return static_cast<double>(std::max(lanes, octets)) * 0x1p-24 * sum_of_magnitudes;
}

// Keeps what was recorded, as numbers, by site.
class RecordingTaps : public Taps {
 public:
  struct Record {
    int layer = 0;
    int64_t rows = 0;
    int64_t cols = 0;
    std::vector<double> values;
  };
  void record(std::string_view site, int layer, const ConstView& value) override {
    Record& record = records[std::string(site)];
    record = {layer, value.rows, value.cols, {}};
    for (int64_t row = 0; row < value.rows; ++row) {
      for (int64_t col = 0; col < value.cols; ++col) {
        record.values.push_back(value.dtype == DType::kF32
                                    ? value.row<float>(row)[col]
                                    : numeric::bf16_to_float(value.row<numeric::Bf16>(row)[col]));
      }
    }
  }
  std::map<std::string, Record> records;
};

template <class Op>
const Impl<Op>& row_named(std::string_view name) {
  for (const Impl<Op>& impl : Op::impls()) {
    if (name == impl.name) return impl;
  }
  CHECK(false, "{} has no row {}", Op::kName, name);
}

// The CPU rows that can run a Desc here, reference included.
template <class Op>
std::vector<const char*> cpu_rows(const typename Op::Desc& desc, const DeviceCaps& caps) {
  std::vector<const char*> names;
  for (const Impl<Op>& impl : Op::impls()) {
    if (impl.backend == Backend::kCpu && !impl.can_run(desc, caps)) names.push_back(impl.name);
  }
  return names;
}

// A CPU device with weights. Rows made from it must not outlive it.
class Cpu {
 public:
  explicit Cpu(int threads = 1) : device_(cpu::make_cpu_device(threads)) {}

  TestWeights& weights() { return weights_; }
  device::Device& device() { return *device_; }
  MakeContext context() { return {device_->caps(), weights_, selector_}; }

  // A row made ready, with its workspace; run() may be called many times.
  template <class Op>
  class Ready {
   public:
    Ready(Cpu& cpu, std::string_view row, const typename Op::Desc& desc, const Bucket& bucket,
          const typename Op::Weights& weights)
        : stream_(cpu.device().stream()) {
      const Impl<Op>& impl = row_named<Op>(row);
      const Refusal refusal = impl.can_run(desc, cpu.device().caps());
      CHECK(!refusal, "{} refuses: {}", row, *refusal);
      MakeContext context = cpu.context();
      bytes_ = impl.workspace_bytes(desc, bucket, context);
      workspace_ = std::move(cpu.device().allocate(bytes_ + kGuard)).value();
      plan_ = std::move(impl.make(desc, bucket, weights, context)).value();
      std::memset(workspace_.data(), 0xFF, bytes_ + kGuard);
    }
    void run(const typename Op::Args& args, Taps* taps = nullptr, Sentinel* flags = nullptr, int layer = 0) const {
      Launch launch;
      launch.stream = stream_;
      launch.workspace = View(workspace_.data(), DType::kU8, 1, static_cast<int64_t>(bytes_));
      launch.taps = taps;
      launch.flags = flags;
      launch.layer = layer;
      plan_->enqueue(args, launch);
      const auto* guard = static_cast<const std::byte*>(workspace_.data()) + bytes_;
      // By memcmp: a loop over bytes would take longer than a tiny op.
      CHECK(guard[0] == std::byte{0xFF} && std::memcmp(guard, guard + 1, kGuard - 1) == 0, "workspace overrun");
    }

   private:
    static constexpr size_t kGuard = 256;
    device::Stream stream_;
    device::Buffer workspace_;
    size_t bytes_ = 0;
    PlanPtr<Op> plan_;
  };

  template <class Op>
  Ready<Op> prepare(std::string_view row, const typename Op::Desc& desc, const Bucket& bucket,
                    const typename Op::Weights& weights = {}) {
    return Ready<Op>(*this, row, desc, bucket, weights);
  }

 private:
  std::unique_ptr<device::Device> device_;
  TestWeights weights_;
  Selector selector_;
};

}  // namespace assay::ops::testing
