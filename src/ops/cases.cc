#include "ops/cases.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "base/hash.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"
#include "numeric/f16.h"

namespace assay::ops {

std::string_view evidence_name(Evidence kind) {
  constexpr std::string_view kNames[] = {"identity", "sampled", "projection", "accumulator", "guards",
                                         "sentinel", "order",   "repeats",    "model",       "contact"};
  static_assert(std::size(kNames) == kEvidenceKinds);
  return kNames[static_cast<size_t>(kind)];
}

double ulp(DType dtype, double value) {
  if (!std::isfinite(value)) return 0;
  constexpr int kFractionBits = 52, kBias = 1023;  // of fp64
  const auto biased = static_cast<int>(std::bit_cast<uint64_t>(std::abs(value)) >> kFractionBits);
  const int exponent = std::max(biased - kBias, -126) - (dtype == DType::kBf16 ? 7 : 23);
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kBias) << kFractionBits);
}

double round_to_dtype(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kBf16 ? numeric::bf16_to_float(numeric::bf16_from_float(single)) : single;
}

uint64_t CaseRandom::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

double CaseRandom::normal() {
  double sum = -6;
  for (int i = 0; i < 3; ++i) {  // four uniforms of 16 bits from each word
    for (uint64_t word = next(), part = 0; part < 4; ++part, word >>= 16) {
      sum += static_cast<double>(word & 0xFFFF) * 0x1p-16 + 0x1p-17;
    }
  }
  return sum;
}

void Comparison::within(Evidence kind, std::string_view array, int64_t row, int64_t col, double got, double expected,
                        double bound) {
  ++count_;
  const bool same = got == expected || (std::isnan(got) && std::isnan(expected));
  double ratio = 0;
  if (!same) {
    const double error = std::abs(got - expected);
    ratio = std::isfinite(error) && bound > 0 ? error / bound : std::numeric_limits<double>::infinity();
  }
  if (ratio <= worst_.ratio && ratio <= worst(kind).ratio) return;
  keep({ratio, kind, fmt::format("{}: {}[{}, {}]", case_, array, row, col), got, expected, bound});
}

void Comparison::fail(Evidence kind, std::string_view where) {
  ++count_;
  keep({std::numeric_limits<double>::infinity(), kind, fmt::format("{}: {}", case_, where), 0, 0, 0});
}

void Comparison::keep(Found found) {
  Found& of_kind = by_kind_[static_cast<size_t>(found.kind)];
  if (found.ratio > of_kind.ratio) of_kind = found;
  if (found.ratio > worst_.ratio) worst_ = std::move(found);
}

// In units of the bound, so that tokens of every size count alike.
void Block::add(double got, double expected, double accumulated, double rounding) {
  const double bound = accumulated + rounding;
  if (bound <= 0 || !std::isfinite(got)) return;
  const double error = (got - expected) / bound, value = expected / bound;
  errors_ += error * error;
  weighted_ += error * value;
  roundings_ += value * value * rounding * rounding / (4 * bound * bound);
  accumulated_ += std::abs(value) * accumulated / bound;
  ++count_;
}

void Block::judge(Comparison& comparison, std::string_view array, int64_t row, int64_t col) const {
  constexpr int64_t kLeast = 256;
  if (count_ < kLeast) return;
  comparison.within(Evidence::kProjection, fmt::format("rms of a block of {}", array), row, col,
                    std::sqrt(errors_ / static_cast<double>(count_)), 0, 0.75);
  comparison.within(Evidence::kProjection, fmt::format("scale of a block of {}", array), row, col, weighted_, 0,
                    6 * std::sqrt(roundings_) + accumulated_);
}

// Of what may be written.
constexpr std::byte kYes{0xFF}, kNo{0};

int Bench::insert(Array array) {
  std::vector<std::byte> image(array.placed.size() + 2 * kZone);
  std::copy(array.placed.begin(), array.placed.end(), image.begin() + kZone);
  array.placed = std::move(image);
  auto memory = device_.allocate(array.placed.size());
  CHECK(memory.ok(), "{}: {}", array.name, memory.error().message());
  array.memory = std::move(memory).value();
  arrays_.push_back(std::move(array));
  return static_cast<int>(arrays_.size()) - 1;
}

int Bench::add(std::string name, DType dtype, int64_t rows, int64_t cols, Role role, int64_t pad, const Value& value) {
  Array array{std::move(name), dtype, rows, cols, contiguous_ ? cols : cols + pad, role, {}, {}, {}, {}};
  const size_t size = dtype_bytes(dtype);
  array.placed.resize(static_cast<size_t>(rows * array.stride) * size);
  if (role == Role::kOutput) {
    array.writable.assign(array.placed.size(), kNo);
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = array.writable.begin() + row * array.stride * static_cast<int64_t>(size);
      std::fill(first, first + cols * static_cast<int64_t>(size), kYes);
    }
  }
  if (role == Role::kInOut) array.writable.assign(array.placed.size(), kNo);
  const auto place_all = [&](auto rounded) {
    for (int64_t row = 0; row < rows; ++row) {
      std::byte* to = array.placed.data() + static_cast<size_t>(row * array.stride) * size;
      for (int64_t col = 0; col < cols; ++col, to += size) {
        const auto element = rounded(value(row, col));
        std::memcpy(to, &element, sizeof(element));
      }
    }
  };
  if (!value) return insert(std::move(array));
  switch (dtype) {
    case DType::kF32:
      place_all([](double number) { return static_cast<float>(number); });
      break;
    case DType::kI32:
      place_all([](double number) { return static_cast<int32_t>(number); });
      break;
    default:
      CHECK(dtype == DType::kBf16, "array of {}", dtype_name(dtype));
      place_all([](double number) { return numeric::bf16_from_float(static_cast<float>(number)); });
  }
  return insert(std::move(array));
}

int Bench::add_bytes(std::string name, ConstBytes bytes, Role role) {
  const auto size = static_cast<int64_t>(bytes.size());
  Array array{std::move(name), DType::kU8, 1, size, size, role, {bytes.begin(), bytes.end()}, {}, {}, {}};
  if (role != Role::kInput) array.writable.assign(bytes.size(), role == Role::kOutput ? kYes : kNo);
  return insert(std::move(array));
}

void Bench::expect_written(int array, int64_t first, int64_t count) {
  Array& entry = arrays_[static_cast<size_t>(array)];
  const auto size = static_cast<int64_t>(dtype_bytes(entry.dtype));
  const auto begin = entry.writable.begin() + first * size;
  std::fill(begin, begin + count * size, kYes);
}

View Bench::view(int array) const {
  const Array& entry = arrays_[static_cast<size_t>(array)];
  return View(static_cast<char*>(entry.memory.data()) + kZone, entry.dtype, entry.rows, entry.cols, entry.stride);
}

std::vector<MutableBytes> Bench::inputs() const {
  std::vector<MutableBytes> list;
  for (const Array& array : arrays_) {
    if (array.role == Role::kOutput) continue;
    list.emplace_back(static_cast<std::byte*>(array.memory.data()), array.memory.bytes());
  }
  return list;
}

void Bench::place(int poison) {
  const auto byte = static_cast<std::byte>(poison);
  for (Array& array : arrays_) {
    std::vector<std::byte>& image = array.placed;
    std::fill(image.begin(), image.begin() + kZone, byte);
    std::fill(image.end() - kZone, image.end(), byte);
    const size_t size = dtype_bytes(array.dtype);
    if (array.role == Role::kOutput) {
      std::fill(image.begin() + kZone, image.end() - kZone, byte);
    } else if (array.stride > array.cols) {
      for (int64_t row = 0; row < array.rows; ++row) {
        const auto end = image.begin() + kZone + static_cast<std::ptrdiff_t>(size) * (row * array.stride + array.cols);
        std::fill(end, end + static_cast<std::ptrdiff_t>(size) * (array.stride - array.cols), byte);
      }
    }
    device_.upload(array.memory.data(), image.data(), image.size());
  }
}

void Bench::place_turned(int poison) {
  place(poison);
  for (const Array& array : arrays_) {
    if (array.role == Role::kOutput || (array.dtype != DType::kF32 && array.dtype != DType::kBf16)) continue;
    std::vector<std::byte> turned = array.placed;
    const size_t size = dtype_bytes(array.dtype);
    for (size_t last = kZone + size - 1; last < turned.size() - kZone; last += size) turned[last] ^= std::byte{0x80};
    device_.upload(array.memory.data(), turned.data(), turned.size());
  }
}

void Bench::fetch() {
  for (Array& array : arrays_) {
    if (array.role == Role::kInput) continue;
    array.fetched.resize(array.placed.size());
    device_.download(array.fetched.data(), array.memory.data(), array.fetched.size());
  }
}

std::vector<double> Bench::initial_row(int array, int64_t row) const {
  std::vector<double> values(static_cast<size_t>(arrays_[static_cast<size_t>(array)].cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = initial(array, row, static_cast<int64_t>(i));
  return values;
}

ConstBytes Bench::bytes(int array) const {
  const Array& entry = arrays_[static_cast<size_t>(array)];
  return ConstBytes(entry.fetched).subspan(kZone, entry.fetched.size() - 2 * kZone);
}

// The first byte outside of what may be written that is not as it was; -1: none. Whole arrays are looked over first, by
// a loop that compilers turn into vector instructions.
int64_t Bench::first_overwritten(const Array& array) {
  const std::byte *before = array.placed.data(), *after = array.fetched.data(), *may = array.writable.data();
  const size_t end = array.placed.size() - kZone;
  std::byte any{0};
  for (size_t i = kZone; i < end; ++i) any |= (before[i] ^ after[i]) & ~may[i - kZone];
  const bool zones = std::memcmp(before, after, kZone) == 0 && std::memcmp(before + end, after + end, kZone) == 0;
  if (any == kNo && zones) return -1;
  for (size_t i = 0; i < array.placed.size(); ++i) {
    const bool inside = i >= kZone && i < end;
    if (before[i] != after[i] && !(inside && may[i - kZone] == kYes)) return static_cast<int64_t>(i);
  }
  return -1;
}

// Piece by piece: a copy of it all would cost more than the comparison.
bool Bench::input_intact(const Array& array) const {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<std::byte> piece(std::min(kPiece, array.placed.size()));
  for (size_t first = 0; first < array.placed.size(); first += kPiece) {
    const size_t size = std::min(kPiece, array.placed.size() - first);
    device_.download(piece.data(), static_cast<const std::byte*>(array.memory.data()) + first, size);
    if (std::memcmp(piece.data(), array.placed.data() + first, size) != 0) return false;
  }
  return true;
}

void Bench::judge_guards(Comparison& comparison) const {
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput) {
      if (!input_intact(array)) comparison.fail(Evidence::kGuards, "input " + array.name + " was changed");
      continue;
    }
    const int64_t at = first_overwritten(array);
    if (at < 0) continue;
    comparison.fail(Evidence::kGuards, fmt::format("{}: byte {} of {} was written", array.name,
                                                   at - static_cast<int64_t>(kZone), array.placed.size() - 2 * kZone));
  }
}

void Bench::judge_untouched(Comparison& comparison) const {
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput || array.fetched == array.placed) continue;
    comparison.fail(Evidence::kGuards, array.name + " was written with no token live");
  }
}

uint64_t Bench::digest() const {
  uint64_t digest = 0;
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput) continue;
    const size_t size = dtype_bytes(array.dtype);
    for (int64_t row = 0; row < array.rows; ++row) {  // pads hold the poison, which changes from run to run
      const size_t first = kZone + static_cast<size_t>(row * array.stride) * size;
      digest = hash64(ConstBytes(array.fetched).subspan(first, static_cast<size_t>(array.cols) * size), digest);
    }
  }
  return digest;
}

void SiteTap::record(std::string_view site, int, const ConstView& value) {
  if (site != site_) return;
  cols_ = value.cols;
  values_.clear();
  device_.synchronize();
  std::vector<std::byte> row(static_cast<size_t>(value.cols) * dtype_bytes(value.dtype));
  for (int64_t r = 0; r < value.rows; ++r) {
    const auto* from =
        static_cast<const std::byte*>(value.data) + static_cast<size_t>(r * value.stride) * dtype_bytes(value.dtype);
    device_.download(row.data(), from, row.size());
    for (int64_t c = 0; c < value.cols; ++c) {
      values_.push_back(value.dtype == DType::kF32
                            ? load_unaligned<float>(row.data() + 4 * c)
                            : numeric::bf16_to_float(load_unaligned<numeric::Bf16>(row.data() + 2 * c)));
    }
  }
}

std::vector<int32_t> token_counts(const CaseContext& context, int32_t bucket_tokens, int32_t most) {
  std::set<int32_t> counts;
  if (context.effort == Effort::kLight) {
    counts = {1, 3, 17};
  } else if (context.effort == Effort::kWeights) {
    counts = {7};
  } else {
    counts = {1, 2, 3, 4, 6, 7, 8, 13, 16, 17, 22, 32, 33, 64, 65, 127, 257, bucket_tokens - 1, bucket_tokens};
    if (context.effort == Effort::kFull) {
      for (int32_t n = 1; n <= 9; ++n) counts.insert(n);
      counts.insert({15, 31, 37, 63, 101, 128, 129, 191, 255, 256, 511, 512, 513, bucket_tokens + 0});
    }
  }
  std::vector<int32_t> kept;
  for (int32_t count : counts) {
    const bool edge = count == bucket_tokens && context.effort == Effort::kFull;
    if (count >= 1 && count <= bucket_tokens && (count <= most || edge)) kept.push_back(count);
  }
  if (kept.empty()) kept.push_back(std::min(1, bucket_tokens));
  return kept;
}

int64_t run_work(const CaseContext& context, int64_t on_cpu) {
  return context.device.caps().backend == device::Backend::kCpu ? on_cpu : 1024 * on_cpu;
}

int32_t decode_tokens(int32_t tokens, size_t index, const Bucket& bucket) {
  constexpr size_t kVariants = 3;
  const size_t variant = (index + index / kVariants) % kVariants;  // not in step with what else goes by the index
  return variant == 0 ? std::min(tokens, bucket.sequences) : variant == 1 ? 0 : tokens / 2;
}

double mixed_input(CaseRandom& random, int64_t token, int64_t channel) {
  const double value = random.normal();
  switch (token % 8) {
    case 1:
      return channel % 61 == 7 ? 100 * value : value;  // outlier channels
    case 2:
      return channel / 16 % 3 == 1 ? 0 : value;  // zero blocks
    case 3:
      return 0x1p-20 * value;  // tiny
    case 4:
      return 0x1p+15 * value;  // huge
    case 5:
      return 0;
    case 6:
      return std::ldexp(value, static_cast<int>(channel / 16 % 9) - 4);  // every block its own size
    default:
      return value;
  }
}

const std::vector<double>* activation_input(const CaseContext& context, int64_t token, int64_t width) {
  const auto& known = context.activations;
  if (context.effort != Effort::kWeights || token % 2 == 1 || known.empty()) return nullptr;
  const std::vector<double>& row = known[static_cast<size_t>(token / 2) % known.size()];
  return static_cast<int64_t>(row.size()) == width ? &row : nullptr;
}

std::vector<int64_t> sampled_columns(int64_t count, int64_t least, CaseRandom& random) {
  std::vector<int64_t> columns;
  constexpr int64_t kTile = 64;
  const int64_t tiles = (count + kTile - 1) / kTile;
  const int64_t per_tile = std::min(kTile, (least + tiles - 1) / tiles);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = tile * kTile, size = std::min(kTile, count - first);
    const int64_t wanted = std::min(per_tile, size), start = random.below(size);
    std::set<int64_t> chosen;
    for (int64_t i = 0; i < wanted; ++i) chosen.insert(first + (start + i * size / wanted) % size);
    columns.insert(columns.end(), chosen.begin(), chosen.end());
  }
  return columns;
}

struct CaseWeights::Entry {
  struct Packed {
    PackedWeight weight;
    device::Buffer memory;
  };
  WeightSource source;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::unique_ptr<Packed>> packed;
};

CaseWeights::CaseWeights(device::Device& device) : device_(device) {}
CaseWeights::~CaseWeights() = default;

WeightId CaseWeights::add(const std::vector<Shape>& matrices, double magnitude, CaseRandom& random) {
  using numeric::WeightFormat;
  auto entry = std::make_unique<Entry>();
  entry->source.name = fmt::format("synthetic {}", entries_.size());
  for (const Shape& shape : matrices) {
    numeric::EncodedMatrix matrix;
    matrix.name = fmt::format("{}.{}", entry->source.name, entry->source.matrices.size());
    matrix.format = shape.format;
    matrix.rows = shape.rows;
    matrix.cols = shape.cols;
    const auto count = static_cast<size_t>(shape.rows * shape.cols);
    const bool packed = shape.format == WeightFormat::kNvfp4;
    std::vector<std::byte> data(packed ? count / 2 : shape.format == WeightFormat::kF32 ? 4 * count : 2 * count);
    if (packed) {
      for (size_t i = 0; i < data.size(); i += 8) {
        const uint64_t word = random.next();
        std::memcpy(data.data() + i, &word, std::min<size_t>(8, data.size() - i));
      }
      // Exponents 2^-3 to 2^1 and all mantissas; 37 is coprime to 40, 11 keeps neighbouring rows apart. Every 13th
      // scale is subnormal.
      const int64_t blocks = shape.cols / numeric::kNvfp4Block;
      std::vector<std::byte> scales(static_cast<size_t>(shape.rows * blocks));
      const int64_t shift = random.below(40);
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t place = shift + 37 * block + 11 * row;
          scales[static_cast<size_t>(row * blocks + block)] =
              static_cast<std::byte>(place % 13 == 0 ? 1 + place / 13 % 7 : 0x20 + place % 40);
        }
      }
      matrix.global_scale =
          static_cast<float>(magnitude / 3 * (1 + 0.37 * static_cast<double>(entry->source.matrices.size() % 5)));
      entry->bytes.push_back(std::move(scales));
      matrix.scales = entry->bytes.back();
    } else {
      for (size_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(magnitude * random.normal());
        const uint16_t half = shape.format == WeightFormat::kF16 ? numeric::f16_from_float(value).bits
                                                                 : numeric::bf16_from_float(value).bits;
        if (shape.format == WeightFormat::kF32) {
          std::memcpy(data.data() + 4 * i, &value, 4);
        } else {
          std::memcpy(data.data() + 2 * i, &half, 2);
        }
      }
    }
    entry->bytes.push_back(std::move(data));
    matrix.data = entry->bytes.back();
    entry->source.matrices.push_back(std::move(matrix));
  }
  entries_.push_back(std::move(entry));
  return WeightId{static_cast<int32_t>(entries_.size()) - 1};
}

WeightId CaseWeights::borrow(const WeightSource& source) {
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->source = source;
  return WeightId{static_cast<int32_t>(entries_.size()) - 1};
}

const WeightSource& CaseWeights::source(WeightId id) const { return entries_.at(static_cast<size_t>(id))->source; }

Result<const PackedWeight*> CaseWeights::get(WeightId id, LayoutId layout) {
  Entry& entry = *entries_.at(static_cast<size_t>(id));
  for (const auto& packed : entry.packed) {
    if (packed->weight.layout == layout) return static_cast<const PackedWeight*>(&packed->weight);
  }
  auto packed = std::make_unique<Entry::Packed>();
  packed->weight = {layout, &entry.source, nullptr, layout->bytes(entry.source)};
  if (packed->weight.bytes > 0) {
    std::vector<std::byte> host(packed->weight.bytes + 256);
    void* start = host.data();
    size_t space = host.size();
    std::align(256, packed->weight.bytes, start, space);
    ASSAY_TRY(layout->pack(entry.source, {static_cast<std::byte*>(start), packed->weight.bytes}));
    ASSAY_ASSIGN(packed->memory, device_.allocate(packed->weight.bytes));
    device_.upload(packed->memory.data(), start, packed->weight.bytes);
    packed->weight.data = static_cast<const std::byte*>(packed->memory.data());
  }
  entry.packed.push_back(std::move(packed));
  return static_cast<const PackedWeight*>(&entry.packed.back()->weight);
}

}  // namespace assay::ops
