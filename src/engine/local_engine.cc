#include "engine/local_engine.h"

#include <algorithm>
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

// Runs a step when it is collected: on a CPU the caller's thread is the device.
class InProcessEngine : public LocalEngine {
 public:
  explicit InProcessEngine(EngineParts parts)
      : parts_(std::move(parts)),
        sentinel_{static_cast<uint32_t*>(parts_.sentinel.data())},
        ids_(static_cast<size_t>(parts_.limits.max_step_tokens)),
        params_(static_cast<size_t>(parts_.limits.max_step_outputs)),
        words_(parts_.model->state_shape().layers.size() + 1) {}

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

  void submit(Step step) override {
    CHECK(static_cast<int32_t>(pending_.size()) < parts_.limits.max_in_flight, "{} steps in flight", pending_.size());
    pending_.push_back(std::move(step));
  }

  StepResult collect() override {
    CHECK(!pending_.empty(), "no step to collect");
    const Step step = std::move(pending_.front());
    pending_.pop_front();
    return run(step);
  }

 private:
  StepResult run(const Step& step) {
    const int64_t start_us = now_us();
    for (int32_t page : step.freed_pages) parts_.state.poison_page(page);
    for (int32_t slot : step.freed_slots) parts_.state.poison_slot(slot);
    if (step.tokens.empty()) {  // only gives pages and slots back
      StepResult nothing;
      nothing.id = step.id;
      return nothing;
    }
    const auto ids = std::span(ids_).first(step.tokens.size());
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = resolve(step.tokens[t]);
    parts_.arrays.fill(step, ids);
    upload_sampling(step);
    enqueue(step);
    StepResult result;
    result.id = step.id;
    read_outputs(step, result);
    read_sentinel(result);
    last_ = result;
    result.compute_us = now_us() - start_us;
    return result;
  }

  int32_t resolve(const TokenSource& source) const {
    int32_t id = source.id;
    if (id < 0) {
      CHECK(source.step == last_.id && static_cast<size_t>(source.output) < last_.outputs.size(),
            "token of step {}, output {}", source.step, source.output);
      id = last_.outputs[static_cast<size_t>(source.output)].token;
    }
    CHECK(id >= 0 && id < parts_.limits.vocab_size, "token id {}", id);
    return id;
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

  ops::View logits(size_t rows) {
    return {parts_.logits.data(), DType::kF32, static_cast<int64_t>(rows), parts_.config.vocab_size};
  }

  void forward(const Step& step) {
    models::ForwardArgs args;
    args.batch = parts_.arrays.batch();
    args.ids = parts_.arrays.ids();
    const auto outputs = static_cast<int32_t>(step.outputs.size());
    args.outputs = {decode_outputs(step), outputs, nullptr};
    args.output_tokens = parts_.arrays.output_tokens();
    args.kv = parts_.state.kv();
    args.recurrent = parts_.state.recurrent();
    args.logits = logits(step.outputs.size());
    parts_.forward->forward(args, launch());
  }

  int32_t decode_outputs(const Step& step) const {
    const int32_t decode_tokens = parts_.arrays.batch().tokens.decode;
    return static_cast<int32_t>(std::count_if(step.outputs.begin(), step.outputs.end(),
                                              [&](const OutputRequest& o) { return o.token < decode_tokens; }));
  }

  void upload_sampling(const Step& step) {
    const size_t rows = step.outputs.size();
    for (size_t r = 0; r < rows; ++r) params_[r] = step.outputs[r].params;
    if (rows > 0) {
      parts_.device->upload(parts_.sample_params.data(), params_.data(), rows * sizeof(ops::SampleParams));
    }
    if (!step.adjustments.empty()) {
      parts_.device->upload(parts_.sample_adjustments.data(), step.adjustments.data(),
                            step.adjustments.size() * sizeof(ops::LogitAdjustment));
    }
  }

  // Steps of decode and verify rows come again and again in few shapes: the device may replay them. A shape fixes all
  // launches, because the arrays of equal shapes lie at equal addresses (step_arrays.h).
  void enqueue(const Step& step) {
    const auto work = [&] {
      parts_.device->fill(parts_.sentinel.data(), 0, words_.size() * sizeof(uint32_t));
      forward(step);
      if (!step.outputs.empty()) sample(step.outputs.size());
    };
    const ops::BatchView& batch = parts_.arrays.batch();
    if (taps_ || batch.tokens.decode < batch.tokens.total) {
      work();
      return;
    }
    uint64_t shape = 0;
    for (int64_t size : {int64_t{batch.tokens.total}, int64_t{batch.sequences}, int64_t{batch.page_table_stride},
                         static_cast<int64_t>(step.outputs.size())}) {
      shape = hash_fold(shape, static_cast<uint64_t>(size));
    }
    parts_.device->run_captured(shape, work);
  }

  void sample(size_t rows) {
    ops::Launch run = launch();
    run.layer = static_cast<int>(words_.size()) - 1;
    parts_.sample->enqueue(
        {static_cast<int32_t>(rows), logits(rows), static_cast<const ops::SampleParams*>(parts_.sample_params.data()),
         static_cast<ops::SampleResult*>(parts_.sample_results.data()),
         static_cast<const ops::LogitAdjustment*>(parts_.sample_adjustments.data())},
        run);
  }

  void read_outputs(const Step& step, StepResult& result) {
    const size_t rows = step.outputs.size();
    if (rows == 0) return;
    parts_.device->synchronize();
    result.outputs.resize(rows);
    parts_.device->download(result.outputs.data(), parts_.sample_results.data(), rows * sizeof(ops::SampleResult));
  }

  void read_sentinel(StepResult& result) {
    parts_.device->synchronize();
    parts_.device->download(words_.data(), parts_.sentinel.data(), words_.size() * sizeof(uint32_t));
    for (size_t layer = 0; layer < words_.size(); ++layer) {
      if (words_[layer] != 0 && result.sentinel_layer < 0) result.sentinel_layer = static_cast<int32_t>(layer);
      result.sentinel |= words_[layer];
    }
  }

  EngineParts parts_;
  ops::Sentinel sentinel_;
  std::deque<Step> pending_;
  StepResult last_;
  std::optional<HostTaps> taps_;
  std::vector<int32_t> ids_;
  std::vector<ops::SampleParams> params_;
  std::vector<uint32_t> words_;
};

}  // namespace

std::unique_ptr<LocalEngine> make_local_engine(EngineParts parts) {
  return std::make_unique<InProcessEngine>(std::move(parts));
}

}  // namespace assay::engine
