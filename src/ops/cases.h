// Cases: what an op is given to prove its rows, and how the outcome is judged. `<op>_cases.cc` makes those of one op;
// the proof runs them through every row. Nothing here knows a backend: inputs go to the device through device::Device.
//
// Bounds. Every comparison has a bound derived in the op's file:
//     c * eps_acc * sum|terms|  +  one ulp for each declared rounding  +  one ulp of the output
// against the value before its last rounding. A right row makes at most half an ulp at each rounding, so it stays at or
// under half of the bound. What the file derives is taken as it is; a row that needs more has failed.
//
//   sum of K products in fp32, any order of additions (u = 2^-24):  (6 sqrt(K) + K / 8 + 8) u sum|terms|
// The first term holds with probability 1 - 2 exp(-18) for partial sums rounded to nearest (Higham and Mary 2019, with
// lambda = 6); the second is for instructions that add 16 or more products at a time and truncate (2 u each); the third
// for the fold of partial sums. The same lambda = 6 serves all sums of independent roundings: "statistical" below.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "numeric/bf16.h"
#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

enum class Evidence : uint8_t {
  kIdentity,     // weights come back bit for bit
  kSampled,      // elements against fp64
  kProjection,   // sums over a block of outputs
  kAccumulator,  // little is left of two large terms that cancel, and it is right
  kGuards,       // nothing but the outputs was written
  kSentinel,     // what is not finite is flagged, and nothing else is
  kOrder,        // rows of one order id agree bit for bit
  kRepeats,      // runs agree bit for bit
  kModel,        // the whole model's probabilities
  kContact,      // it neither crashed nor hung
};
inline constexpr size_t kEvidenceKinds = 10;
std::string_view evidence_name(Evidence kind);

inline constexpr double kUnit = 0x1p-24;  // u of fp32: half an ulp of 1

inline double sum_error(int64_t terms, double magnitudes) {
  const auto k = static_cast<double>(terms);
  return (6 * std::sqrt(k) + k / 8 + 8) * kUnit * magnitudes;
}

// Distance of neighbouring values of a dtype around |value|; subnormals included.
double ulp(DType dtype, double value);
// To fp32 and from there to the dtype, each to nearest even.
double round_to_dtype(DType dtype, double value);

// SplitMix64: the same numbers on every machine.
class CaseRandom {
 public:
  explicit CaseRandom(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint64_t>(limit)); }
  double uniform() { return static_cast<double>(next() >> 40) * 0x1p-24; }
  double normal();  // sum of twelve uniforms

 private:
  uint64_t state_;
};

// Normal values for large arrays: 65,521 of them over and over, each stretch from a place of its own. A prime: no two
// rows of a power of two meet the same ones.
class CaseNoise {
 public:
  explicit CaseNoise(CaseRandom& random) : values_(65521) {
    for (double& value : values_) value = random.normal();
  }
  double at(int64_t stretch, int64_t index) const {
    return values_[(static_cast<size_t>(stretch) * 40503 + static_cast<size_t>(index)) % values_.size()];
  }

 private:
  std::vector<double> values_;
};

struct Found {
  double ratio = 0;  // error over bound; infinity: not a number, or unequal where equality is asked
  Evidence kind = Evidence::kSampled;
  std::string where;
  double got = 0;
  double expected = 0;
  double bound = 0;
};

// Keeps the worst of many comparisons.
class Comparison {
 public:
  // order: of the row that is judged, which may say what it rounds.
  explicit Comparison(OrderId order = OrderId::kNone) : order_(order) {}
  OrderId order() const { return order_; }
  void set_case(std::string name) { case_ = std::move(name); }
  void within(Evidence kind, std::string_view array, int64_t row, int64_t col, double got, double expected,
              double bound);
  void equal(Evidence kind, std::string_view array, int64_t row, int64_t col, double got, double expected) {
    within(kind, array, row, col, got, expected, 0);
  }
  void fail(Evidence kind, std::string_view where);

  const Found& worst() const { return worst_; }
  // The worst of each kind, by kind.
  const Found& worst(Evidence kind) const { return by_kind_[static_cast<size_t>(kind)]; }
  bool passed() const { return worst_.ratio <= 1; }
  int64_t count() const { return count_; }

 private:
  void keep(Found found);
  std::string case_;
  Found worst_;
  Found by_kind_[kEvidenceKinds];
  int64_t count_ = 0;
  OrderId order_;
};

// Elements of one block of outputs, judged together: what is small in each but the same in all.
//   rms    sqrt(mean((error / bound)^2)) <= 0.75: roundings are spread evenly over an ulp, which makes 0.29; at least
//   256
//          elements, so that chance stays below half
//   scale  |sum(error * expected)| <= 6 sqrt(sum((expected * rounding / 2)^2)) + sum|expected * accumulated|, all in
//          units of the bound, statistical: sees a factor of 1 + e from e = 0.016 / sqrt(n) on with bf16 outputs
class Block {
 public:
  // bound = accumulated + rounding
  void add(double got, double expected, double accumulated, double rounding);
  void judge(Comparison& comparison, std::string_view array, int64_t row, int64_t col) const;

 private:
  double errors_ = 0, weighted_ = 0, roundings_ = 0, accumulated_ = 0;
  int64_t count_ = 0;
};

enum class Role : uint8_t { kInput, kOutput, kInOut };

// Arrays of one case on the device, each between guard zones; with a copy on the host of what they must hold.
class Bench {
 public:
  static constexpr size_t kZone = 1024;      // bytes before and after an array
  static constexpr int kNan = 0xFF;          // NaN in every float type, -1 as an integer
  static constexpr int kLargeFinite = 0x7F;  // 3.4e38 as bf16 and as fp32

  // contiguous: rows follow each other without pads, as most arrays of a served step do.
  explicit Bench(device::Device& device, bool contiguous = false) : device_(device), contiguous_(contiguous) {}

  using Value = std::function<double(int64_t row, int64_t col)>;
  // pad: elements after each row that nobody may write, unless rows are contiguous. Values are rounded to the dtype.
  // Outputs need no value.
  int add(std::string name, DType dtype, int64_t rows, int64_t cols, Role role, int64_t pad, const Value& value = {});
  int add_bytes(std::string name, ConstBytes bytes, Role role);
  template <class T>
  int add_array(std::string name, std::span<const T> values) {
    return add_bytes(std::move(name), std::as_bytes(values), Role::kInput);
  }
  // Of a kInOut array, what the op is to write; all the rest must stay. Elements count from the first of row 0.
  void expect_written(int array, int64_t first, int64_t count);

  View view(int array) const;
  template <class T>
  T* pointer(int array) const {
    return static_cast<T*>(view(array).data);
  }

  // What the op reads, on the device, zones included.
  std::vector<MutableBytes> inputs() const;

  // Uploads everything; outputs, pads and zones hold the poison byte.
  void place(int poison);
  // The same with the sign of every float that the op reads turned: what a row keeps of an address is then stale.
  void place_turned(int poison);
  // Downloads what the op writes.
  void fetch();
  double at(int array, int64_t row, int64_t col) const {  // as fetched
    const Array& read = arrays_[static_cast<size_t>(array)];
    return element(read.fetched, read, row, col);
  }
  double initial(int array, int64_t row, int64_t col) const {  // as placed
    const Array& read = arrays_[static_cast<size_t>(array)];
    return element(read.placed, read, row, col);
  }
  std::vector<double> initial_row(int array, int64_t row) const;
  ConstBytes bytes(int array) const;  // as fetched, without zones
  // After fetch(): compares what must not have changed, inputs too, with what was placed.
  void judge_guards(Comparison& comparison) const;
  // After fetch(): that nothing was written at all.
  void judge_untouched(Comparison& comparison) const;
  uint64_t digest() const;  // of outputs, as fetched

 private:
  struct Array {
    std::string name;
    DType dtype;
    int64_t rows, cols, stride;
    Role role;
    std::vector<std::byte> placed, fetched;  // zones included; fetched: empty of inputs
    std::vector<std::byte> writable;         // of each byte of the array 0xFF or 0; empty for inputs
    device::Buffer memory;
  };
  static double element(const std::vector<std::byte>& image, const Array& array, int64_t row, int64_t col) {
    const int64_t index = row * array.stride + col;
    const std::byte* first = image.data() + kZone;
    if (array.dtype == DType::kF32) return load_unaligned<float>(first + 4 * index);
    if (array.dtype == DType::kI32) return load_unaligned<int32_t>(first + 4 * index);
    return numeric::bf16_to_float(load_unaligned<numeric::Bf16>(first + 2 * index));
  }
  int insert(Array array);
  bool input_intact(const Array& array) const;
  static int64_t first_overwritten(const Array& array);
  device::Device& device_;
  bool contiguous_;
  std::vector<Array> arrays_;
  int poison_ = kNan;
};

// Taps that keep one site, downloaded from the device.
class SiteTap : public Taps {
 public:
  SiteTap(device::Device& device, std::string site) : device_(device), site_(std::move(site)) {}
  void record(std::string_view site, int layer, const ConstView& value) override;
  void clear() { values_.clear(); }
  bool seen() const { return !values_.empty(); }
  double at(int64_t row, int64_t col) const { return values_.at(static_cast<size_t>(row * cols_ + col)); }

 private:
  device::Device& device_;
  std::string site_;
  int64_t cols_ = 0;
  std::vector<double> values_;
};

template <class Op>
struct Case {
  std::string name;
  int64_t work = 0;  // multiply-adds, about
  Bucket bucket;
  std::unique_ptr<Bench> bench;
  std::unique_ptr<SiteTap> tap;  // optional
  typename Op::Args args;
  std::function<void(Comparison&)> judge;  // reads the bench after fetch()
  bool digest = true;                      // false: outputs of right rows may differ in bits that nobody reads
  uint32_t flags = 0;                      // the sentinel bits that a run raises, no more and no less
};

// How much is asked for.
enum class Effort : uint8_t {
  kLight,  // small shapes only: for rows that are slow
  kNormal,
  kFull,     // every shape
  kWeights,  // evidence about the weights themselves: identity, and one dense case
};

struct CaseContext {
  device::Device& device;
  const WeightProvider& weights;
  Bucket bucket;  // the largest that will be run
  Effort effort = Effort::kNormal;
  uint64_t seed = 1;
  // Of a text, each of root mean square 1: embeddings, and what deeper layers see. Empty: none are known.
  std::span<const std::vector<double>> activations = {};
};

// The token counts to try up to a bucket's: its edge and neighbours, 1, 2, powers of two and theirs, primes. What is
// above `most` is left out; the edge is tried all the same with kFull.
std::vector<int32_t> token_counts(const CaseContext& context, int32_t bucket_tokens, int32_t most);

// Tokens of one weight: no row's way for many begins later, so that a case of so many shows it, also where matrices are
// too large for more.
inline constexpr int32_t kManyTokens = 65;

// The multiply-adds that a row may take for one case, given what is little for a CPU: a GPU is given all sizes that its
// rows tell apart.
int64_t run_work(const CaseContext& context, int64_t on_cpu);

// How many of a case's tokens are decode tokens, by the number of the case: as many as a bucket has sequences, none,
// half. A row may dispatch on phase.
int32_t decode_tokens(int32_t tokens, size_t index, const Bucket& bucket);

// Inputs of all kinds, by token: normal, outlier channels, zero blocks, tiny, huge; token 5 is all zeros.
double mixed_input(CaseRandom& random, int64_t token, int64_t channel);

// A known activation for every second token of a case about weights whose inputs have their width; else null.
const std::vector<double>* activation_input(const CaseContext& context, int64_t token, int64_t width);

// Every n-tile of 64 outputs is hit, and at least `least` outputs in all if there are so many. Ascending.
std::vector<int64_t> sampled_columns(int64_t count, int64_t least, CaseRandom& random);

// Weights that the cases made up; packed on the device on demand.
class CaseWeights : public WeightProvider {
 public:
  explicit CaseWeights(device::Device& device);
  ~CaseWeights() override;
  struct Shape {
    numeric::WeightFormat format;
    int64_t rows, cols;
  };
  // Random values; of NVFP4 no two neighbouring blocks have the same scale, and no two matrices the same global one.
  WeightId add(const std::vector<Shape>& matrices, double magnitude, CaseRandom& random);
  // Another's weight under this provider, so that one set of ids holds both kinds.
  WeightId borrow(const WeightSource& source);

  const WeightSource& source(WeightId id) const override;
  Result<const PackedWeight*> get(WeightId id, LayoutId layout) override;

 private:
  struct Entry;
  device::Device& device_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace assay::ops
