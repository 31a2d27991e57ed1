#include "checkpoint/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/huge_pages.h"
#include "base/shape.h"
#include "numeric/nvfp4.h"

namespace assay::checkpoint {
namespace {

using numeric::Bf16;
using numeric::EncodedMatrix;
using numeric::WeightFormat;

constexpr int64_t kBlockValues = 131071;  // 2^17 - 1, a prime
constexpr size_t kAlignment = 64;
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr float kLogitDeviation = 3.0f;
constexpr double kSkewOctaves = 4;  // between the first and the last expert's rows
// E4M3 codes of block scales: 0.5 to 2 in steps of an eighth of an octave.
constexpr uint8_t kLeastScale = 0x30;
constexpr uint8_t kScaleCodes = 17;

// SplitMix64: a small generator that any 64-bit key starts well.
class Random {
 public:
  explicit Random(uint64_t key) : state_(key) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  float normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }

 private:
  uint64_t state_;
};

// Repeats `block` over `out` from its element `start` on.
template <class T>
void repeat(const std::vector<T>& block, size_t start, MutableBytes out) {
  size_t at = start * sizeof(T), done = 0;
  const auto* source = reinterpret_cast<const std::byte*>(block.data());
  while (done < out.size()) {
    const size_t count = std::min(block.size() * sizeof(T) - at, out.size() - done);
    std::memcpy(out.data() + done, source + at, count);
    done += count;
    at = 0;
  }
}

// Root mean square of code * block scale, both drawn evenly.
float product_deviation() {
  double codes = 0, scales = 0;
  for (uint8_t code = 0; code < 16; ++code) codes += std::pow(numeric::e2m1_to_float(code), 2) / 16;
  for (uint8_t i = 0; i < kScaleCodes; ++i) {
    scales += std::pow(numeric::e4m3_to_float(static_cast<uint8_t>(kLeastScale + i)), 2) / kScaleCodes;
  }
  return static_cast<float>(std::sqrt(codes * scales));
}

// Mean and standard deviation of a small tensor, by what it is.
struct Spread {
  float mean;
  float deviation;
};

Spread spread_of(std::string_view name) {
  if (name.ends_with("A_log")) return {0.0f, 0.7f};
  if (name.ends_with("dt_bias")) return {-4.0f, 1.0f};
  if (name.ends_with("conv1d.weight")) return {0.0f, 0.5f};
  if (name.ends_with("linear_attn.norm.weight")) return {1.0f, 0.1f};
  return {0.0f, 0.1f};  // zero-centred norms
}

std::string_view last_part(std::string_view base) { return base.substr(base.rfind('.') + 1); }

}  // namespace

Result<MutableBytes> DummyWeights::take(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > rest_.size()) {
    const size_t size = std::max(rounded, kChunkBytes);
    auto* chunk = static_cast<std::byte*>(allocate_huge(size));
    if (chunk == nullptr) {
      return Error{
          ErrorKind::kResource,         "no memory for dummy weights", "", fmt::format("{} bytes so far", bytes_),
          fmt::format("{} more", size), "fewer layers (dummy_layers)"};
    }
    chunks_.emplace_back(chunk);
    rest_ = {chunk, size};
  }
  const MutableBytes taken = rest_.first(bytes);
  rest_ = rest_.subspan(rounded);
  bytes_ += bytes;
  return taken;
}

DummyBinder::DummyBinder(DummyWeights& weights, const DummyOptions& options) : weights_(weights), options_(options) {
  if (!options.allocate) return;
  Random random(options.seed);
  code_block_.resize(kBlockValues);
  scale_block_.resize(kBlockValues);
  for (uint8_t& code : code_block_) code = static_cast<uint8_t>(random.next());
  for (uint8_t& scale : scale_block_) scale = static_cast<uint8_t>(kLeastScale + random.next() % kScaleCodes);
}

DummyBinder::~DummyBinder() = default;

bool DummyBinder::quantised(std::string_view base) const {
  if (options_.format == DummyFormat::kBf16) return false;
  if (base.find(".experts.") != std::string_view::npos) return true;
  if (options_.format == DummyFormat::kModelOpt) return false;
  for (std::string_view plain : {"embed_tokens", "gate", "shared_expert_gate", "in_proj_a", "in_proj_b"}) {
    if (last_part(base) == plain) return false;
  }
  return true;
}

Result<EncodedMatrix> DummyBinder::matrix(const std::string& base, int64_t rows, int64_t cols) {
  EncodedMatrix matrix;
  matrix.name = base + ".weight";
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.format = quantised(base) ? WeightFormat::kNvfp4 : WeightFormat::kBf16;
  if (matrix.format == WeightFormat::kNvfp4 && cols % numeric::kNvfp4Block != 0) {
    return Error{ErrorKind::kInvalidArgument,
                 "inputs are not a multiple of the block",
                 "dummy weights: " + base,
                 std::to_string(cols),
                 fmt::format("a multiple of {} for NVFP4", numeric::kNvfp4Block),
                 "choose the format bf16"};
  }
  if (!options_.allocate) return matrix;
  float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  if (base == "lm_head" || (base.ends_with("embed_tokens") && options_.tied_embeddings)) deviation *= kLogitDeviation;
  if (base.ends_with("embed_tokens") && !options_.tied_embeddings) deviation = 1.0f;
  if (matrix.format == WeightFormat::kNvfp4) {
    ASSAY_TRY(fill_nvfp4(matrix, deviation));
  } else if (base.ends_with("mlp.gate") && options_.router == DummyRouter::kSkewed) {
    ASSAY_TRY(fill_router(matrix));
  } else {
    ASSAY_TRY(fill_plain(matrix, deviation));
  }
  return matrix;
}

Result<void> DummyBinder::fill_plain(EncodedMatrix& matrix, float deviation) {
  std::vector<Bf16>& block = normal_blocks_[deviation];
  if (block.empty()) {
    Random random(options_.seed ^ 0x6e6f726d);
    block.resize(kBlockValues);
    for (Bf16& value : block) value = numeric::bf16_from_float(deviation * random.normal());
  }
  ASSAY_ASSIGN(const MutableBytes out, weights_.take(static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(Bf16)));
  repeat(block, key_of(matrix.name) % kBlockValues, out);
  matrix.data = out;
  return {};
}

Result<void> DummyBinder::fill_router(EncodedMatrix& matrix) {
  ASSAY_ASSIGN(const MutableBytes out, weights_.take(static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(Bf16)));
  auto* values = reinterpret_cast<Bf16*>(out.data());
  Random random(key_of(matrix.name));
  const double last = static_cast<double>(std::max<int64_t>(1, matrix.rows - 1));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const double octaves = kSkewOctaves * (0.5 - static_cast<double>(row) / last);
    const double scale = std::exp2(octaves) / std::sqrt(static_cast<double>(matrix.cols));
    for (int64_t col = 0; col < matrix.cols; ++col) {
      values[row * matrix.cols + col] = numeric::bf16_from_float(static_cast<float>(scale) * random.normal());
    }
  }
  matrix.data = out;
  return {};
}

Result<void> DummyBinder::fill_nvfp4(EncodedMatrix& matrix, float deviation) {
  const auto count = static_cast<size_t>(matrix.rows * matrix.cols);
  ASSAY_ASSIGN(const MutableBytes codes, weights_.take(count / 2));
  ASSAY_ASSIGN(const MutableBytes scales, weights_.take(count / numeric::kNvfp4Block));
  const uint64_t key = key_of(matrix.name);
  repeat(code_block_, key % kBlockValues, codes);
  repeat(scale_block_, (key >> 32) % kBlockValues, scales);
  matrix.data = codes;
  matrix.scales = scales;
  matrix.global_scale = deviation / product_deviation();
  matrix.input_scale = 6.0f / numeric::kNvfp4ProductMax;  // activations up to 6 times their usual size of 1
  return {};
}

Result<EncodedMatrix> DummyBinder::dense(const std::string& name, const Shape& shape, int64_t rows) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  CHECK(rows > 0 && count % rows == 0, "{} values in {} rows", count, rows);
  EncodedMatrix matrix;
  matrix.name = name;
  matrix.rows = rows;
  matrix.cols = count / rows;
  if (!options_.allocate) return matrix;
  ASSAY_ASSIGN(const MutableBytes out, weights_.take(static_cast<size_t>(count) * sizeof(Bf16)));
  auto* values = reinterpret_cast<Bf16*>(out.data());
  const Spread spread = spread_of(name);
  Random random(key_of(name));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = numeric::bf16_from_float(spread.mean + spread.deviation * random.normal());
  }
  matrix.data = out;
  return matrix;
}

Result<EncodedMatrix> DummyBinder::expert_slice(const std::string& name, const ExpertSlice&) {
  CHECK(false, "dummy weights have no tensor {}", name);
}

uint64_t DummyBinder::key_of(std::string_view name) const {
  uint64_t hash = 0xcbf29ce484222325 ^ options_.seed;  // FNV-1a, then one step of the generator to spread it
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return Random(hash).next();
}

}  // namespace assay::checkpoint
