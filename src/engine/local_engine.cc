#include "engine/local_engine.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"

namespace assay::engine {
namespace {

// Shows values in host memory to the taps of a caller, wherever the ops run.
class HostTaps : public ops::Taps {
 public:
  HostTaps(device::Device& device, ops::Taps& taps) : device_(device), taps_(taps) {}

  void record(std::string_view site, int layer, const ops::ConstView& value) override {
    if (device_.caps().backend == device::Backend::kCpu) {
      taps_.record(site, layer, value);
      return;
    }
    if (value.rows == 0) return;
    const int64_t elements = (value.rows - 1) * value.stride + value.cols;
    const size_t bytes = static_cast<size_t>(elements) * dtype_bytes(value.dtype);
    host_.resize(bytes);
    device_.synchronize();
    device_.download(host_.data(), value.data, bytes);
    taps_.record(site, layer, {host_.data(), value.dtype, value.rows, value.cols, value.stride});
  }

 private:
  device::Device& device_;
  ops::Taps& taps_;
  std::vector<std::byte> host_;
};

// A step from submit() to collect(), and the host memory of its copies.
struct Flight {
  Step step;
  MutableBytes params;
  MutableBytes adjustments;
  MutableBytes results;
  MutableBytes words;  // of the sentinel
  int mark = 0;
  int64_t started_us = 0;
};

Result<Flight> make_flight(EngineParts& parts, int32_t index) {
  Flight flight;
  flight.step = reserved_step(parts.limits);
  flight.mark = index;
  CHECK(index < backend::HostLink::kMarks, "{} steps in flight", index + 1);
  ASSAY_ASSIGN(flight.params, parts.link->allocate(parts.sample_params.bytes()));
  ASSAY_ASSIGN(flight.adjustments, parts.link->allocate(parts.sample_adjustments.bytes()));
  ASSAY_ASSIGN(flight.results, parts.link->allocate(parts.sample_results.bytes()));
  ASSAY_ASSIGN(flight.words, parts.link->allocate(parts.sentinel.bytes()));
  return flight;
}

// Where work goes on while the host does something else, submit() enqueues a step: the tokens it takes from the step
// before need not have left the device. On a CPU the caller's thread is the device, and collect() runs the step.
class InProcessEngine : public ObservedEngine {
 public:
  InProcessEngine(EngineParts parts, std::vector<Flight> flights)
      : parts_(std::move(parts)),
        sentinel_{static_cast<uint32_t*>(parts_.sentinel.data())},
        flights_(std::move(flights)),
        ids_(static_cast<size_t>(parts_.limits.max_step_tokens)) {
    result_.outputs.reserve(static_cast<size_t>(parts_.limits.max_step_outputs));
  }

  const EngineLimits& limits() const override { return parts_.limits; }
  const checkpoint::TextConfig& config() const override { return parts_.config; }
  const ModelSummary& summary() const override { return parts_.summary; }
  const proof::Report& verification() const override { return parts_.report; }
  void set_verification(proof::Report report) override { parts_.report = std::move(report); }
  std::string explain() const override { return parts_.selector->explain(); }
  void set_taps(ops::Taps* taps) override {
    taps_.reset();
    if (taps != nullptr) taps_.emplace(*parts_.device, *taps);
  }
  device::Device& device() override { return *parts_.device; }
  void fill_state(uint64_t seed) override { parts_.state.fill_noise(seed); }

  void submit(const Step& step) override {
    CHECK(in_flight_ < flights_.size(), "{} steps in flight", in_flight_);
    Flight& flight = flights_[(oldest_ + in_flight_++) % flights_.size()];
    flight.step = step;
    if (parts_.link->runs_ahead()) start(flight);
  }

  const StepResult& collect() override {
    CHECK(in_flight_ > 0, "no step to collect");
    Flight& flight = flights_[oldest_];
    oldest_ = (oldest_ + 1) % flights_.size();
    --in_flight_;
    if (!parts_.link->runs_ahead()) start(flight);
    finish(flight);
    return result_;
  }

  void warm_up() override {
    if (!parts_.link->runs_ahead()) return;
    const EngineLimits& limits = parts_.limits;
    StepShape shape;
    for (int32_t pages = 1;; pages *= 4) {
      Step step;
      step.rows.push_back({.page_count = std::min(pages, pages_per_sequence(limits))});
      shape.page_stride = StepShape::of(step, limits).page_stride;
      for (int32_t rows = 1; rows <= limits.max_step_rows; rows = shape.rows + 1) {
        shape.tokens = shape.rows = shape.outputs = rows;
        shape = shape.bucket(limits);
        if (shape.outputs < shape.rows) break;  // steps of that many rows do not give all their logits
        parts_.arrays.fill_empty(shape);
        parts_.device->run_captured(hash_fold(shape.key(), *capture_key()), [&] { work(shape.outputs); });
        parts_.device->synchronize();
      }
      if (pages >= pages_per_sequence(limits)) return;
    }
  }

 private:
  void start(Flight& flight) {
    const Step& step = flight.step;
    flight.started_us = now_us();
    parts_.state.poison(*parts_.link, step.freed_pages, step.freed_slots);
    if (step.tokens.empty()) return;  // only gives pages and slots back
    const bool unknown = name_tokens(step);
    StepShape shape = StepShape::of(step, parts_.limits);
    const bool replayed = replays(step);
    if (replayed) shape = shape.bucket(parts_.limits);
    parts_.arrays.fill(step, std::span(ids_).first(step.tokens.size()), shape, replayed);
    if (unknown) {
      parts_.link->resolve(parts_.arrays.ids_data(), static_cast<int32_t>(step.tokens.size()),
                           static_cast<const int32_t*>(parts_.sample_results.data()),
                           sizeof(ops::SampleResult) / sizeof(int32_t));
    }
    upload_sampling(flight);
    if (replayed) {
      parts_.device->run_captured(hash_fold(shape.key(), *capture_key()), [&] { work(shape.outputs); });
    } else {
      work(shape.outputs);
    }
    sampled_step_ = step.id;
    sampled_ = step.outputs.size();
    parts_.link->download(flight.results.data(), parts_.sample_results.data(), sampled_ * sizeof(ops::SampleResult));
    parts_.link->download(flight.words.data(), parts_.sentinel.data(), flight.words.size());
    parts_.link->mark(flight.mark);
  }

  void finish(const Flight& flight) {
    const Step& step = flight.step;
    result_.id = step.id;
    result_.outputs.clear();
    result_.sentinel = 0;
    result_.sentinel_layer = -1;
    result_.compute_us = 0;
    if (step.tokens.empty()) return;
    parts_.link->wait(flight.mark);
    const auto* outputs = reinterpret_cast<const ops::SampleResult*>(flight.results.data());
    result_.outputs.assign(outputs, outputs + step.outputs.size());
    read_sentinel(flight);
    const int64_t now = now_us();
    result_.compute_us = now - std::max(flight.started_us, finished_us_);
    finished_us_ = now;
  }

  // ids_: an id, or -1 - i for the token of output i of the step before, which may not be known here yet. True: there
  // is one of those.
  bool name_tokens(const Step& step) {
    bool unknown = false;
    for (size_t t = 0; t < step.tokens.size(); ++t) {
      const TokenSource& source = step.tokens[t];
      CHECK(source.id < parts_.limits.vocab_size, "token id {}", source.id);
      ids_[t] = source.id;
      if (source.id >= 0) continue;
      CHECK(source.step == sampled_step_ && static_cast<size_t>(source.output) < sampled_,
            "token of step {}, output {}", source.step, source.output);
      ids_[t] = -1 - source.output;
      unknown = true;
    }
    return unknown;
  }

  // What an observer does with the ops is captured with them; nullopt: it cannot be.
  std::optional<uint64_t> capture_key() const {
    return parts_.observer == nullptr ? 0 : parts_.observer->capture_key();
  }

  // Steps of a token and an output a row, none of them prefill, come again and again in few shapes, which warm_up()
  // knows, and a shape fixes all launches (step_arrays.h).
  bool replays(const Step& step) const {
    return parts_.link->runs_ahead() && !taps_ && capture_key() && step.tokens.size() == step.rows.size() &&
           step.outputs.size() == step.rows.size() &&
           std::all_of(step.rows.begin(), step.rows.end(),
                       [](const StepRow& row) { return row.phase != Phase::kPrefill; });
  }

  ops::Launch launch() {
    ops::Launch launch;
    launch.stream = parts_.device->stream();
    launch.workspace =
        ops::View(parts_.workspace.data(), DType::kU8, 1, static_cast<int64_t>(parts_.workspace.bytes()));
    launch.flags = &sentinel_;
    launch.taps = taps_ ? &*taps_ : nullptr;
    return launch;
  }

  ops::View logits(int32_t rows) const { return {parts_.logits.data(), DType::kF32, rows, parts_.config.vocab_size}; }

  void work(int32_t outputs) {
    parts_.device->fill(parts_.sentinel.data(), 0, parts_.sentinel.bytes());
    models::ForwardArgs args;
    args.batch = parts_.arrays.batch();
    args.ids = parts_.arrays.ids();
    args.outputs = parts_.arrays.outputs();
    args.output_tokens = parts_.arrays.output_tokens();
    args.kv = parts_.state.kv();
    args.recurrent = parts_.state.recurrent();
    args.logits = logits(outputs);
    parts_.forward->forward(args, launch());
    if (outputs > 0) sample(outputs);
  }

  void sample(int32_t rows) {
    ops::Launch run = launch();
    run.layer = static_cast<int>(parts_.sentinel.bytes() / sizeof(uint32_t)) - 1;
    ops::SampleOp::Args args;
    args.rows = rows;
    args.logits = logits(rows);
    args.params = static_cast<const ops::SampleParams*>(parts_.sample_params.data());
    args.results = static_cast<ops::SampleResult*>(parts_.sample_results.data());
    args.adjustments = static_cast<const ops::LogitAdjustment*>(parts_.sample_adjustments.data());
    args.live = parts_.arrays.live_outputs();
    parts_.sample->enqueue(args, run);
  }

  void upload_sampling(Flight& flight) const {
    const Step& step = flight.step;
    auto* params = reinterpret_cast<ops::SampleParams*>(flight.params.data());
    for (size_t r = 0; r < step.outputs.size(); ++r) params[r] = step.outputs[r].params;
    parts_.link->upload(parts_.sample_params.data(), params, step.outputs.size() * sizeof(ops::SampleParams));
    if (step.adjustments.empty()) return;
    const size_t bytes = step.adjustments.size() * sizeof(ops::LogitAdjustment);
    std::memcpy(flight.adjustments.data(), step.adjustments.data(), bytes);
    parts_.link->upload(parts_.sample_adjustments.data(), flight.adjustments.data(), bytes);
  }

  void read_sentinel(const Flight& flight) {
    const auto* words = reinterpret_cast<const uint32_t*>(flight.words.data());
    for (size_t layer = 0; layer < flight.words.size() / sizeof(uint32_t); ++layer) {
      if (words[layer] != 0 && result_.sentinel_layer < 0) result_.sentinel_layer = static_cast<int32_t>(layer);
      result_.sentinel |= words[layer];
    }
  }

  EngineParts parts_;
  ops::Sentinel sentinel_;
  std::vector<Flight> flights_;  // a ring of max_in_flight
  size_t oldest_ = 0;
  size_t in_flight_ = 0;
  uint64_t sampled_step_ = 0;  // whose results lie in sample_results
  size_t sampled_ = 0;         // how many
  StepResult result_;          // of the step collected last
  int64_t finished_us_ = 0;
  std::optional<HostTaps> taps_;
  std::vector<int32_t> ids_;
};

}  // namespace

Result<std::unique_ptr<ObservedEngine>> make_local_engine(EngineParts parts) {
  std::vector<Flight> flights;
  for (int32_t i = 0; i < parts.limits.max_in_flight; ++i) {
    ASSAY_ASSIGN(Flight flight, make_flight(parts, i));
    flights.push_back(std::move(flight));
  }
  return std::unique_ptr<ObservedEngine>(std::make_unique<InProcessEngine>(std::move(parts), std::move(flights)));
}

}  // namespace assay::engine
