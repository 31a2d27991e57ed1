#include "engine/step_arrays.h"

#include <algorithm>
#include <bit>

namespace assay::engine {
namespace {

void check_row(const Step& step, const StepRow& row, const EngineLimits& limits) {
  CHECK(row.token_count >= 1 && row.position >= 0, "row of {} tokens at {}", row.token_count, row.position);
  CHECK(row.position + row.token_count <= limits.context_tokens, "position {} of {}", row.position + row.token_count,
        limits.context_tokens);
  CHECK(int64_t{row.page_count} * limits.page_tokens >= row.position + row.token_count, "{} pages for {} positions",
        row.page_count, row.position + row.token_count);
  CHECK(row.first_page >= 0 && static_cast<size_t>(row.first_page + row.page_count) <= step.pages.size(), "pages");
  CHECK(row.phase != Phase::kPrefill || row.position % kPrefillCut == 0, "prefill starts at {}", row.position);
  if (limits.state_slots == 0) return;
  CHECK(row.state_write >= 0 && row.state_write < limits.state_slots, "state slot {}", row.state_write);
  CHECK((row.state_read < 0) == (row.position == 0), "state slot {} at position {}", row.state_read, row.position);
  CHECK(row.state_read < limits.state_slots, "state slot {}", row.state_read);
  for (const StepRow& other : step.rows) {
    CHECK(other.state_read != row.state_write, "slot {} is read and written", row.state_write);
    CHECK(&other == &row || other.state_write != row.state_write, "slot {} is written twice", row.state_write);
  }
}

}  // namespace

void check_step(const Step& step, const EngineLimits& limits) {
  CHECK(!step.rows.empty() && static_cast<int32_t>(step.rows.size()) <= limits.max_step_rows, "{} rows",
        step.rows.size());
  CHECK(static_cast<int32_t>(step.tokens.size()) <= limits.max_step_tokens, "{} tokens", step.tokens.size());
  CHECK(static_cast<int32_t>(step.outputs.size()) <= limits.max_step_outputs, "{} outputs", step.outputs.size());
  int32_t next_token = 0;
  bool prefill_seen = false;
  for (const StepRow& row : step.rows) {
    CHECK(row.first_token == next_token, "row starts at token {}, wanted {}", row.first_token, next_token);
    next_token += row.token_count;
    CHECK(!prefill_seen || row.phase == Phase::kPrefill, "a decode row after a prefill row");
    prefill_seen = row.phase == Phase::kPrefill;
    check_row(step, row, limits);
  }
  CHECK(next_token == static_cast<int32_t>(step.tokens.size()), "rows hold {} of {} tokens", next_token,
        step.tokens.size());
  int32_t last = -1;
  for (const OutputRequest& output : step.outputs) {
    CHECK(output.token > last && output.token < next_token, "output token {} after {}", output.token, last);
    last = output.token;
    const ops::SampleParams& params = output.params;
    CHECK(params.first_adjustment >= 0 && params.adjustment_count >= 0 &&
              params.first_adjustment + params.adjustment_count <= static_cast<int32_t>(step.adjustments.size()),
          "adjustments {} + {} of {}", params.first_adjustment, params.adjustment_count, step.adjustments.size());
  }
  CHECK(static_cast<int32_t>(step.adjustments.size()) <= limits.max_step_adjustments, "{} adjustments",
        step.adjustments.size());
  for (const ops::LogitAdjustment& one : step.adjustments) {
    CHECK(one.token >= 0 && one.token < limits.vocab_size, "adjusted token {}", one.token);
  }
  for (int32_t page : step.pages) CHECK(page >= 0 && page < limits.page_count, "page {}", page);
}

Result<StepArrays> StepArrays::make(device::Device& device, const EngineLimits& limits) {
  StepArrays arrays;
  arrays.device_ = &device;
  arrays.limits_ = limits;
  const auto tokens = static_cast<size_t>(limits.max_step_tokens);
  const auto rows = static_cast<size_t>(limits.max_step_rows);
  const auto pages = static_cast<size_t>((limits.context_tokens + limits.page_tokens - 1) / limits.page_tokens);
  const size_t count = 3 * tokens + (rows + 1) + rows * pages + 2 * rows + static_cast<size_t>(limits.max_step_outputs);
  arrays.staging_.resize(count);
  ASSAY_ASSIGN(arrays.memory_, device.allocate(count * sizeof(int32_t)));
  return arrays;
}

template <class Fill>
const int32_t* StepArrays::place(size_t count, const Fill& fill) {
  CHECK(used_ + count <= staging_.size(), "step arrays hold {}", staging_.size());
  fill(staging_.data() + used_);
  const int32_t* on_device = static_cast<const int32_t*>(memory_.data()) + used_;
  used_ += count;
  return on_device;
}

void StepArrays::fill(const Step& step, std::span<const int32_t> ids) {
  check_step(step, limits_);
  used_ = 0;
  const size_t rows = step.rows.size();
  const size_t tokens = step.tokens.size();
  int32_t decode_tokens = 0;
  int32_t page_stride = 1;
  for (const StepRow& row : step.rows) {
    if (row.phase != Phase::kPrefill) decode_tokens += row.token_count;
    page_stride = std::max(page_stride, row.page_count);
  }
  // Few different strides, so that steps come in few shapes.
  const int32_t most_pages = (limits_.context_tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  page_stride = std::min(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(page_stride))),
                         std::max(most_pages, page_stride));
  ids_ = place(tokens, [&](int32_t* out) { std::copy(ids.begin(), ids.end(), out); });
  batch_ = {};
  batch_.tokens = {decode_tokens, static_cast<int32_t>(tokens), nullptr};
  batch_.sequences = static_cast<int32_t>(rows);
  batch_.positions = place(tokens, [&](int32_t* out) {
    for (const StepRow& row : step.rows) {
      for (int32_t i = 0; i < row.token_count; ++i) out[row.first_token + i] = row.position + i;
    }
  });
  batch_.sequence_of = place(tokens, [&](int32_t* out) {
    for (size_t r = 0; r < rows; ++r) {
      std::fill_n(out + step.rows[r].first_token, step.rows[r].token_count, static_cast<int32_t>(r));
    }
  });
  batch_.query_start = place(rows + 1, [&](int32_t* out) {
    for (size_t r = 0; r < rows; ++r) out[r] = step.rows[r].first_token;
    out[rows] = static_cast<int32_t>(tokens);
  });
  batch_.page_table_stride = page_stride;
  batch_.page_table = place(rows * static_cast<size_t>(page_stride), [&](int32_t* out) {
    for (size_t r = 0; r < rows; ++r) {
      int32_t* to = out + r * static_cast<size_t>(page_stride);
      std::fill_n(to, page_stride, -1);
      std::copy_n(step.pages.begin() + step.rows[r].first_page, step.rows[r].page_count, to);
    }
  });
  batch_.state_read = place(rows, [&](int32_t* out) {
    for (size_t r = 0; r < rows; ++r) out[r] = step.rows[r].state_read;
  });
  batch_.state_write = place(rows, [&](int32_t* out) {
    for (size_t r = 0; r < rows; ++r) out[r] = step.rows[r].state_write;
  });
  output_tokens_ = place(step.outputs.size(), [&](int32_t* out) {
    for (size_t o = 0; o < step.outputs.size(); ++o) out[o] = step.outputs[o].token;
  });
  device_->upload(memory_.data(), staging_.data(), used_ * sizeof(int32_t));
}

}  // namespace assay::engine
