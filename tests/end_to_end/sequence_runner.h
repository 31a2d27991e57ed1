// Runs one sequence on an engine without a scheduler, and keeps the logits it sees.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/load.h"

namespace assay::testing {

// The device under test: ASSAY_TEST_DEVICE, or the CPU.
inline std::string test_device() {
  const char* name = std::getenv("ASSAY_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}

// Collects named intermediate values as floats, one row after another.
class RecordingTaps : public ops::Taps {
 public:
  struct Site {
    int64_t cols = 0;
    std::vector<float> values;
    std::span<const float> row(size_t index) const {
      return std::span(values).subspan(index * static_cast<size_t>(cols), static_cast<size_t>(cols));
    }
    size_t rows() const { return cols == 0 ? 0 : values.size() / static_cast<size_t>(cols); }
  };

  void record(std::string_view site, int layer, const ops::ConstView& value) override {
    Site& kept = sites_[{std::string(site), layer}];
    kept.cols = value.cols;
    for (int64_t r = 0; r < value.rows; ++r) {
      for (int64_t c = 0; c < value.cols; ++c) kept.values.push_back(element(value, r, c));
    }
  }

  const Site& site(const std::string& name, int layer) { return sites_[{name, layer}]; }
  void clear() { sites_.clear(); }

 private:
  static float element(const ops::ConstView& view, int64_t row, int64_t col) {
    switch (view.dtype) {
      case DType::kF32:
        return view.row<float>(row)[col];
      case DType::kI32:
        return static_cast<float>(view.row<int32_t>(row)[col]);
      case DType::kBf16: {
        const uint32_t bits = static_cast<uint32_t>(view.row<uint16_t>(row)[col]) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
      }
      default:
        CHECK(false, "tap of {}", dtype_name(view.dtype));
    }
  }
  std::map<std::pair<std::string, int>, Site> sites_;
};

// Uses pages 0.. and slots 0 and 1: one runner at a time on an engine.
class SequenceRunner {
 public:
  explicit SequenceRunner(engine::LocalEngine& engine) : engine_(engine) {}

  // Runs the tokens in steps of at most `piece` tokens (for prefill a multiple of 64); asks for the outputs of all
  // tokens from index `outputs_from` on.
  std::vector<ops::SampleResult> run(std::span<const int32_t> tokens, engine::Phase phase, int32_t piece,
                                     size_t outputs_from, const ops::SampleParams& params = {}) {
    std::vector<ops::SampleResult> results;
    for (size_t done = 0; done < tokens.size();) {
      const size_t count = std::min(tokens.size() - done, static_cast<size_t>(piece));
      engine::Step step = make_step(tokens.subspan(done, count), phase);
      for (size_t t = 0; t < count; ++t) {
        if (done + t >= outputs_from) step.outputs.push_back({static_cast<int32_t>(t), params});
      }
      engine_.submit(step);
      const engine::StepResult& result = engine_.collect();
      results.insert(results.end(), result.outputs.begin(), result.outputs.end());
      done += count;
    }
    return results;
  }

  int32_t position() const { return position_; }

 private:
  engine::Step make_step(std::span<const int32_t> tokens, engine::Phase phase) {
    const engine::EngineLimits& limits = engine_.limits();
    engine::Step step;
    step.id = ++step_;
    for (int32_t id : tokens) step.tokens.push_back(engine::TokenSource::literal(id));
    engine::StepRow row;
    row.phase = phase;
    row.token_count = static_cast<int32_t>(tokens.size());
    row.position = position_;
    position_ += row.token_count;
    row.page_count = (position_ + limits.page_tokens - 1) / limits.page_tokens;
    for (int32_t p = 0; p < row.page_count; ++p) step.pages.push_back(p);
    if (limits.state_slots > 0) {
      row.state_read = row.position == 0 ? -1 : slot_;
      slot_ = 1 - slot_;
      row.state_write = slot_;
    }
    step.rows.push_back(row);
    return step;
  }

  engine::LocalEngine& engine_;
  uint64_t step_ = 0;
  int32_t position_ = 0;
  int32_t slot_ = 0;
};

}  // namespace assay::testing
