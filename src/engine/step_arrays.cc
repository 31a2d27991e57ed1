#include "engine/step_arrays.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

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

namespace {

constexpr int32_t kLiveCounts = 4;  // decode tokens, tokens, decode outputs, outputs

// Few page strides and counts, so that steps come in few shapes.
int32_t stride_for(int32_t pages, const EngineLimits& limits) {
  int32_t stride = 1;
  while (stride < pages) stride *= 4;
  return std::min(stride, std::max(pages_per_sequence(limits), pages));
}
int32_t bucket_for(int32_t count, int32_t most) {
  const int32_t power = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(count, 1))));
  const int32_t step = std::max(power / 4, 1);
  return std::min((count + step - 1) / step * step, std::max(most, count));
}

}  // namespace

StepShape StepShape::of(const Step& step, const EngineLimits& limits) {
  int32_t pages = 1;
  for (const StepRow& row : step.rows) pages = std::max(pages, row.page_count);
  return {static_cast<int32_t>(step.tokens.size()), static_cast<int32_t>(step.rows.size()),
          static_cast<int32_t>(step.outputs.size()), stride_for(pages, limits)};
}

StepShape StepShape::bucket(const EngineLimits& limits) const {
  return {bucket_for(tokens, limits.max_step_tokens), bucket_for(rows, limits.max_step_rows),
          outputs == 0 ? 0 : bucket_for(outputs, limits.max_step_outputs), page_stride};
}

uint64_t StepShape::key() const {
  uint64_t key = 0;
  for (int32_t size : {tokens, rows, outputs, page_stride}) key = hash_fold(key, static_cast<uint64_t>(size));
  return key;
}

int64_t StepArrays::bytes(const EngineLimits& limits) {
  const int64_t tokens = limits.max_step_tokens;
  const int64_t rows = limits.max_step_rows;
  const int64_t count =
      kLiveCounts + 3 * tokens + (rows + 1) + rows * pages_per_sequence(limits) + 2 * rows + limits.max_step_outputs;
  return count * static_cast<int64_t>(sizeof(int32_t));
}

Result<StepArrays> StepArrays::make(device::Device& device, backend::HostLink& link, const EngineLimits& limits) {
  StepArrays arrays;
  arrays.link_ = &link;
  arrays.limits_ = limits;
  const auto size = static_cast<size_t>(bytes(limits));
  for (int32_t i = 0; i < limits.max_in_flight; ++i) {
    ASSAY_ASSIGN(const MutableBytes staging, link.allocate(size));
    arrays.staging_.push_back(staging);
  }
  ASSAY_ASSIGN(arrays.memory_, device.allocate(size));
  return arrays;
}

StepArrays::Room StepArrays::take(int32_t count) {
  const MutableBytes staging = staging_[turn_];
  CHECK(static_cast<size_t>(used_ + count) <= staging.size() / sizeof(int32_t), "step arrays of {} bytes",
        staging.size());
  const Room room{reinterpret_cast<int32_t*>(staging.data()) + used_, static_cast<int32_t*>(memory_.data()) + used_};
  used_ += count;
  return room;
}

void StepArrays::lay_out(const StepShape& shape) {
  turn_ = (turn_ + 1) % staging_.size();
  used_ = 0;
  rooms_.live = take(kLiveCounts);
  rooms_.ids = take(shape.tokens);
  rooms_.positions = take(shape.tokens);
  rooms_.sequence_of = take(shape.tokens);
  rooms_.query_start = take(shape.rows + 1);
  rooms_.page_table = take(shape.rows * shape.page_stride);
  rooms_.state_read = take(shape.rows);
  rooms_.state_write = take(shape.rows);
  rooms_.output_tokens = take(shape.outputs);
  batch_ = {};
  batch_.sequences = shape.rows;
  batch_.positions = rooms_.positions.device;
  batch_.sequence_of = rooms_.sequence_of.device;
  batch_.query_start = rooms_.query_start.device;
  batch_.page_table = rooms_.page_table.device;
  batch_.page_table_stride = shape.page_stride;
  batch_.state_read = rooms_.state_read.device;
  batch_.state_write = rooms_.state_write.device;
  ids_ = rooms_.ids.device;
  output_tokens_ = rooms_.output_tokens.device;
}

void StepArrays::fill(const Step& step, std::span<const int32_t> ids, const StepShape& shape, bool bounds) {
  check_step(step, limits_);
  lay_out(shape);
  const auto tokens = static_cast<int32_t>(step.tokens.size());
  const auto outputs = static_cast<int32_t>(step.outputs.size());
  const auto rows = static_cast<int32_t>(step.rows.size());
  std::copy(ids.begin(), ids.end(), rooms_.ids.host);
  int32_t decode_tokens = 0;
  for (int32_t r = 0; r < rows; ++r) {
    const StepRow& row = step.rows[static_cast<size_t>(r)];
    if (row.phase != Phase::kPrefill) decode_tokens += row.token_count;
    for (int32_t i = 0; i < row.token_count; ++i) {
      rooms_.positions.host[row.first_token + i] = row.position + i;
      rooms_.sequence_of.host[row.first_token + i] = r;
    }
    rooms_.query_start.host[r] = row.first_token;
    int32_t* table = rooms_.page_table.host + r * shape.page_stride;
    std::copy_n(step.pages.begin() + row.first_page, row.page_count, table);
    std::fill(table + row.page_count, table + shape.page_stride, -1);
    rooms_.state_read.host[r] = row.state_read;
    rooms_.state_write.host[r] = row.state_write;
  }
  std::fill_n(rooms_.query_start.host + rows, shape.rows + 1 - rows, tokens);
  int32_t decode_outputs = 0;
  for (int32_t o = 0; o < outputs; ++o) {
    const int32_t token = step.outputs[static_cast<size_t>(o)].token;
    rooms_.output_tokens.host[o] = token;
    decode_outputs += token < decode_tokens;
  }
  const int32_t live[kLiveCounts] = {decode_tokens, tokens, decode_outputs, outputs};
  std::copy_n(live, kLiveCounts, rooms_.live.host);
  if (bounds) {
    bound(shape);
  } else {
    batch_.tokens = {decode_tokens, tokens, nullptr};
    outputs_ = {decode_outputs, outputs, nullptr};
  }
  link_->upload(memory_.data(), staging_[turn_].data(), static_cast<size_t>(used_) * sizeof(int32_t));
}

void StepArrays::fill_empty(const StepShape& shape) {
  lay_out(shape);
  std::fill_n(rooms_.live.host, used_, 0);
  bound(shape);
  link_->upload(memory_.data(), staging_[turn_].data(), static_cast<size_t>(used_) * sizeof(int32_t));
}

// A graph for decode and verify rows: counts are bounds, and the device reads the real ones.
void StepArrays::bound(const StepShape& shape) {
  batch_.tokens = {shape.tokens, shape.tokens, rooms_.live.device};
  outputs_ = {shape.outputs, shape.outputs, rooms_.live.device + 2};
}

}  // namespace assay::engine
