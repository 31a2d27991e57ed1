// Running the cases of an op through one row, in chains, and judging them.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/late_arrays.h"
#include "backend/other_work.h"
#include "backend/recording.h"
#include "base/clock.h"
#include "base/hash.h"
#include "ops/all_cases.h"
#include "ops/select.h"
#include "proof/verdict.h"

namespace assay::proof {

// Token counts of a case on the device, as a recording of its work reads them.
class LiveCounts {
 public:
  explicit LiveCounts(device::Device& device)
      : device_(&device), memory_(std::move(device.allocate(sizeof(Counts))).value()) {}

  // `args` with its counts read from here: all of them, until none() or all() is called.
  template <class Args>
  Args of(Args args) {
    const auto* live = static_cast<const int32_t*>(memory_.data());
    if constexpr (requires { args.batch; }) {
      read(args.batch.tokens, live);
    } else if constexpr (requires { args.tokens; }) {
      read(args.tokens, live);
    } else {
      args.live = live + 1;
      counts_ = {args.rows, args.rows};
    }
    return args;
  }
  void none() { place({}); }
  void all() { place(counts_); }

 private:
  using Counts = std::array<int32_t, 2>;  // of decode tokens, of all
  void read(ops::TokenCounts& tokens, const int32_t* live) {
    counts_ = {tokens.decode, tokens.total};
    tokens.live = live;
  }
  void place(const Counts& counts) { device_->upload(memory_.data(), counts.data(), sizeof(Counts)); }

  device::Device* device_;
  device::Buffer memory_;
  Counts counts_{};
};

// A row made ready, with workspace between guard zones.
template <class Op>
class ReadyRow {
 public:
  static Result<ReadyRow> make(const ops::Impl<Op>& impl, const typename Op::Desc& desc, const ops::Bucket& bucket,
                               const typename Op::Weights& weights, device::Device& device,
                               ops::WeightProvider& provider) {
    ops::Selector none;
    ops::MakeContext context{device.caps(), provider, none};
    ReadyRow ready(device, impl.order(desc));
    ready.bytes_ = impl.workspace_bytes(desc, bucket, context);
    ASSAY_ASSIGN(ready.memory_, device.allocate(ready.bytes_ + 2 * ops::Bench::kZone));
    ASSAY_ASSIGN(ready.words_, device.allocate(sizeof(Words)));
    ASSAY_ASSIGN(ready.plan_, impl.make(desc, bucket, weights, context));
    return ready;
  }

  ops::OrderId order() const { return order_; }

  void poison(int byte) {
    poison_ = byte;
    device_->fill(memory_.data(), byte, memory_.bytes());
  }
  void run(const ops::Case<Op>& made) {
    device_->fill(words_.data(), 0, sizeof(Words));
    enqueue(made, made.tap.get());
    device_->synchronize();
  }
  void replay(backend::Recording& recording) {
    device_->fill(words_.data(), 0, sizeof(Words));
    recording.replay();
    device_->synchronize();
  }
  // Of the last run() or replay().
  void judge_sentinel(const ops::Case<Op>& made, ops::Comparison& comparison) const {
    Words words;
    device_->download(words.data(), words_.data(), sizeof(words));
    for (size_t layer = 0; layer < words.size(); ++layer) {
      const uint32_t wanted = layer == kLayer ? made.flags : 0;
      if (words[layer] == wanted) continue;
      comparison.fail(ops::Evidence::kSentinel,
                      fmt::format("word {} of the sentinel is {:#x}, expected {:#x}", layer, words[layer], wanted));
    }
  }
  void enqueue(const ops::Case<Op>& made, ops::Taps* taps = nullptr) { enqueue(made.args, taps); }
  // The case's work behind `ahead`, its token counts read from `counts`; null on a device that records nothing.
  Result<std::unique_ptr<backend::Recording>> record(const ops::Case<Op>& made, LiveCounts& counts,
                                                     backend::LateArrays* ahead) {
    return backend::record(*device_, [&] {
      if (ahead != nullptr) ahead->enqueue();
      enqueue(counts.of(made.args), nullptr);
    });
  }
  device::Device& device() const { return *device_; }
  bool zones_intact() const {
    std::vector<std::byte> zone(ops::Bench::kZone);
    for (const size_t offset : {size_t{0}, ops::Bench::kZone + bytes_}) {
      device_->download(zone.data(), static_cast<const char*>(memory_.data()) + offset, zone.size());
      const auto wanted = static_cast<std::byte>(poison_);
      if (!std::all_of(zone.begin(), zone.end(), [=](std::byte b) { return b == wanted; })) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kLayer = 1;
  using Words = std::array<uint32_t, 3>;
  ReadyRow(device::Device& device, ops::OrderId order) : device_(&device), order_(order) {}
  void enqueue(const typename Op::Args& args, ops::Taps* taps) {
    ops::Launch launch;
    launch.stream = device_->stream();
    launch.workspace =
        ops::View(static_cast<char*>(memory_.data()) + ops::Bench::kZone, DType::kU8, 1, static_cast<int64_t>(bytes_));
    launch.taps = taps;
    ops::Sentinel sentinel{static_cast<uint32_t*>(words_.data())};
    launch.flags = &sentinel;
    launch.layer = kLayer;
    plan_->enqueue(args, launch);
  }
  device::Device* device_;
  ops::OrderId order_;
  device::Buffer memory_, words_;
  size_t bytes_ = 0;
  int poison_ = 0;
  ops::PlanPtr<Op> plan_;
};

// The case as a served step of a GPU runs: recorded once, its token counts on the device, its inputs still on their way
// when it begins. First with no token live, when nothing may be written; then with all. False where the device records
// nothing: then nothing ran.
template <class Op>
bool run_recorded(ReadyRow<Op>& row, const ops::Case<Op>& made, ops::Comparison& comparison) {
  LiveCounts counts(row.device());
  const auto late = backend::make_late_arrays(row.device(), made.bench->inputs());
  auto recording = row.record(made, counts, late.get());
  if (!recording.ok()) comparison.fail(ops::Evidence::kContact, recording.error().message());
  if (!recording.ok() || *recording == nullptr) return false;
  counts.none();
  if (late) late->withhold();
  row.replay(**recording);
  made.bench->fetch();
  made.bench->judge_untouched(comparison);
  counts.all();
  if (late) late->withhold();
  row.replay(**recording);
  return true;
}

struct ChainOptions {
  int repeats = 4;
  double budget_ms = 0;
  bool other_work = false;  // every second chain runs beside other work on the device
  bool recorded = false;    // the second chain runs from recordings, where the device has them
};

// Fills in worst, ratios, repeats, comparisons, digest and, on failure, state and reason.
template <class Op>
void run_chains(ReadyRow<Op>& row, std::vector<ops::Case<Op>>& cases, const ChainOptions& options, Verdict& verdict) {
  ops::Comparison comparison(row.order());
  std::vector<uint64_t> digests(cases.size());
  const int64_t start = now_us();
  int chain = 0;
  for (; chain < options.repeats && comparison.passed(); ++chain) {
    const double spent = static_cast<double>(now_us() - start) / 1e3;
    if (chain >= 2 && options.budget_ms > 0 && spent > options.budget_ms) break;
    const int poison = chain % 2 == 0 ? ops::Bench::kNan : ops::Bench::kLargeFinite;
    row.poison(poison);
    const auto other_work = options.other_work && chain % 2 == 1 ? backend::start_other_work(row.device()) : nullptr;
    for (size_t i = 0; i < cases.size(); ++i) {
      const size_t index = chain % 2 == 0 ? i : cases.size() - 1 - i;
      ops::Case<Op>& made = cases[index];
      comparison.set_case(made.name);
      // A buffer of a served step holds something else every time: first something else, then the case.
      if (chain == 0 && (i == 0 || i + 1 == cases.size())) {
        made.bench->place_turned(poison);
        row.run(made);
      }
      made.bench->place(poison);
      if (made.tap) made.tap->clear();
      // A tap that is judged every time cannot be recorded.
      const bool may_record = options.recorded && chain == 1 && (made.digest || !made.tap);
      if (!may_record || !run_recorded(row, made, comparison)) row.run(made);
      made.bench->fetch();
      if (chain < 2) made.bench->judge_guards(comparison);
      row.judge_sentinel(made, comparison);
      if (chain == 0 || !made.digest) made.judge(comparison);
      const uint64_t digest = made.digest ? made.bench->digest() : 0;
      if (chain == 0) digests[index] = digest;
      if (digest == digests[index]) continue;
      comparison.fail(ops::Evidence::kRepeats, fmt::format("run {} differs from the first", chain + 1));
    }
    if (!row.zones_intact()) comparison.fail(ops::Evidence::kGuards, "the workspace was overrun");
  }
  verdict.repeats = chain;
  verdict.comparisons += comparison.count();
  for (size_t kind = 0; kind < verdict.ratios.size(); ++kind) {
    verdict.ratios[kind] = std::max(verdict.ratios[kind], comparison.worst(static_cast<ops::Evidence>(kind)).ratio);
  }
  if (comparison.worst().ratio >= verdict.worst.ratio) verdict.worst = comparison.worst();
  for (uint64_t digest : digests) verdict.digest = hash_fold(verdict.digest, digest);
  if (comparison.passed()) return;
  verdict.state = State::kFailed;
  const ops::Found& worst = comparison.worst();
  verdict.reason = fmt::format("{}: {}", ops::evidence_name(worst.kind), worst.where);
  const bool values = worst.kind == ops::Evidence::kIdentity || worst.kind == ops::Evidence::kSampled ||
                      worst.kind == ops::Evidence::kProjection;
  if (values) {
    verdict.reason += fmt::format(" is {:.9g}, expected {:.9g}, bound {:.3g}", worst.got, worst.expected, worst.bound);
  }
}

// Microseconds of one run: the least mean of five rounds, each of as many runs as fill 100 us.
template <class Op>
double time_case(ReadyRow<Op>& row, const ops::Case<Op>& made) {
  constexpr int kRounds = 5;
  constexpr int64_t kRoundUs = 100, kMostRuns = 64;
  double least = std::numeric_limits<double>::infinity();
  int64_t runs = 1;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t start = now_us();
    for (int64_t run = 0; run < runs; ++run) row.enqueue(made);
    row.device().synchronize();
    const int64_t took = std::max<int64_t>(now_us() - start, 1);
    least = std::min(least, static_cast<double>(took) / static_cast<double>(runs));
    runs = std::clamp<int64_t>(runs * kRoundUs / took, 1, kMostRuns);
  }
  return least;
}

// The case of fewest tokens and the one of most work.
template <class Op>
std::vector<Timing> time_row(ReadyRow<Op>& row, const std::vector<ops::Case<Op>>& cases) {
  const auto few = std::min_element(cases.begin(), cases.end(),
                                    [](const auto& a, const auto& b) { return a.bucket.tokens < b.bucket.tokens; });
  const auto most =
      std::max_element(cases.begin(), cases.end(), [](const auto& a, const auto& b) { return a.work < b.work; });
  std::vector<Timing> timings;
  for (const auto made : {few, most}) {
    if (made == most && most == few && !timings.empty()) continue;
    made->bench->place(ops::Bench::kNan);
    timings.push_back({made->bucket.tokens, time_case(row, *made)});
  }
  return timings;
}

// The Descs of an op with the largest bucket and the instances of each, in the order in which the model asks for them.
template <class Op>
struct DescGroup {
  typename Op::Desc desc;
  ops::Bucket bucket;
  std::vector<typename Op::Weights> weights;
};

template <class Op>
std::vector<DescGroup<Op>> groups(const ops::Instances& instances) {
  std::vector<DescGroup<Op>> list;
  for (const ops::Instance<Op>& instance : instances.of<Op>()) {
    auto found = std::find_if(list.begin(), list.end(), [&](const auto& group) { return group.desc == instance.desc; });
    if (found == list.end()) found = list.insert(list.end(), DescGroup<Op>{instance.desc, instance.bucket, {}});
    found->bucket.tokens = std::max(found->bucket.tokens, instance.bucket.tokens);
    found->bucket.sequences = std::max(found->bucket.sequences, instance.bucket.sequences);
    found->bucket.outputs = std::max(found->bucket.outputs, instance.bucket.outputs);
    found->weights.push_back(instance.weights);
  }
  return list;
}

// Rows that are slow by intent: they see small shapes only.
inline bool is_light(std::string_view row) { return row.ends_with("reference"); }

}  // namespace assay::proof
