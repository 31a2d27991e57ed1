#include "assay/bench_ops.h"

#include <fmt/core.h>

#include <algorithm>

#include "backend/launch_count.h"
#include "base/check.h"

namespace assay::app {
namespace {

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Calls of equal op, Desc and row together.
std::vector<OpTiming> merged(const std::vector<OpTiming>& calls) {
  std::vector<OpTiming> merged;
  for (const OpTiming& call : calls) {
    auto same = std::find_if(merged.begin(), merged.end(), [&](const OpTiming& known) {
      return known.op == call.op && known.desc == call.desc && known.row == call.row;
    });
    if (same == merged.end()) {
      merged.push_back(call);
      continue;
    }
    same->calls += call.calls;
    same->launches += call.launches;
    same->us += call.us;
    same->work.bytes += call.work.bytes;
    same->work.flops += call.work.flops;
  }
  std::stable_sort(merged.begin(), merged.end(), [](const OpTiming& a, const OpTiming& b) { return a.us > b.us; });
  return merged;
}

}  // namespace

std::string OpTable::title() const {
  if (phase == ops::Phase::kPrefill) return fmt::format("prefill of {} tokens", context);
  return fmt::format("decode step of {} sequence{} at {} tokens", batch, batch == 1 ? "" : "s", context);
}

double OpTable::us() const {
  double sum = 0;
  for (const OpTiming& op : ops) sum += op.us;
  return sum;
}

double OpTable::least_us() const {
  double sum = 0;
  for (const OpTiming& op : ops) sum += roof.least_us(op.work);
  return sum;
}

void OpTimer::before(const ops::OpCall&) {
  launches_before_ = backend::launch_count();
  if (mode_ != Mode::kTime) return;
  CHECK(next_ < calls_.size(), "more than {} ops", calls_.size());
  stamps_->mark(2 * next_);
}

void OpTimer::after(const ops::OpCall& call) {
  if (mode_ == Mode::kTime) stamps_->mark(2 * next_ + 1);
  if (mode_ == Mode::kNote) {
    const auto launches = static_cast<int64_t>(backend::launch_count() - launches_before_);
    calls_.push_back({std::string(call.op()), call.desc(), std::string(call.row()), 1, launches, 0, call.work(read_)});
  }
  ++next_;
}

std::optional<uint64_t> OpTimer::capture_key() const {
  if (mode_ == Mode::kNote) return std::nullopt;
  return mode_ == Mode::kTime ? measurements_ : 0;
}

Result<void> OpTimer::run(Mode mode, const std::function<Result<void>()>& steps) {
  mode_ = mode;
  next_ = 0;
  Result<void> done = steps();
  mode_ = Mode::kIdle;
  return done;
}

Result<std::vector<OpTiming>> OpTimer::measure(device::Device& device, int32_t repeats,
                                               const std::function<Result<void>()>& steps) {
  read_ = [&device](const void* data, int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    device.synchronize();
    device.download(values.data(), data, values.size() * sizeof(int32_t));
    return values;
  };
  calls_.clear();
  ++measurements_;
  ASSAY_TRY(run(Mode::kNote, steps));
  stamps_ = backend::make_timestamps(device.stream(), 2 * calls_.size());
  std::vector<std::vector<double>> samples(calls_.size());
  for (int32_t i = -1; i < repeats; ++i) {
    ASSAY_TRY(run(Mode::kTime, steps));
    device.synchronize();
    for (size_t c = 0; i >= 0 && c < calls_.size(); ++c) {
      samples[c].push_back(stamps_->microseconds(2 * c, 2 * c + 1));
    }
  }
  for (size_t c = 0; c < calls_.size(); ++c) calls_[c].us = median(samples[c]);
  return merged(calls_);
}

}  // namespace assay::app
