// Batches, paged caches and recurrent-state slots for tests of rows that have sequences.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/batch.h"
#include "ops/testing.h"

namespace assay::ops::testing {

// One sequence's part of a step: `tokens` queries from `position` on.
struct SequenceStep {
  int32_t position = 0;
  int32_t tokens = 0;
  std::vector<int32_t> pages = {};
  int32_t state_read = -1;
  int32_t state_write = -1;
};

class TestBatch {
 public:
  // decode: how many tokens, the first ones, are decode or verify rows.
  explicit TestBatch(const std::vector<SequenceStep>& steps, int32_t decode = 0)
      : sequences_(static_cast<int32_t>(steps.size())), decode_(decode) {
    query_start_.push_back(0);
    for (const SequenceStep& step : steps) stride_ = std::max(stride_, static_cast<int32_t>(step.pages.size()));
    for (int32_t s = 0; s < sequences_; ++s) {
      const SequenceStep& step = steps[static_cast<size_t>(s)];
      for (int32_t i = 0; i < step.tokens; ++i) {
        positions_.push_back(step.position + i);
        sequence_of_.push_back(s);
      }
      query_start_.push_back(static_cast<int32_t>(positions_.size()));
      page_table_.insert(page_table_.end(), step.pages.begin(), step.pages.end());
      page_table_.resize(static_cast<size_t>(s + 1) * static_cast<size_t>(stride_), -1);
      state_read_.push_back(step.state_read);
      state_write_.push_back(step.state_write);
    }
  }

  int32_t tokens() const { return static_cast<int32_t>(positions_.size()); }
  Bucket bucket() const { return {tokens(), sequences_}; }
  BatchView view() const {
    BatchView view;
    view.tokens = {decode_, tokens(), nullptr};
    view.sequences = sequences_;
    view.query_start = query_start_.data();
    view.positions = positions_.data();
    view.sequence_of = sequence_of_.data();
    view.page_table = page_table_.data();
    view.page_table_stride = stride_;
    view.state_read = state_read_.data();
    view.state_write = state_write_.data();
    return view;
  }

 private:
  int32_t sequences_;
  int32_t decode_;
  int32_t stride_ = 0;
  std::vector<int32_t> query_start_, positions_, sequence_of_, page_table_, state_read_, state_write_;
};

// A cache whose pages hold NaN until written. pages_for() hands pages out in random order.
class TestCache {
 public:
  TestCache(Random& random, DType dtype, int32_t pages, int32_t page_tokens, int32_t kv_heads, int32_t head_dim)
      : order_(static_cast<size_t>(pages)) {
    view_.dtype = dtype;
    view_.page_tokens = page_tokens;
    view_.kv_heads = kv_heads;
    view_.head_dim = head_dim;
    view_.page_stride = int64_t{kv_heads} * page_tokens * head_dim + 8;  // pages need not touch
    k_.assign(static_cast<size_t>(view_.page_stride * pages) * dtype_bytes(dtype), std::byte{0xFF});
    v_ = k_;
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
  }

  KvCacheView view() {
    view_.k = k_.data();
    view_.v = v_.data();
    return view_;
  }
  std::vector<int32_t> pages_for(int64_t tokens) {
    const auto wanted = static_cast<size_t>((tokens + view_.page_tokens - 1) / view_.page_tokens);
    CHECK(wanted <= order_.size(), "{} pages left", order_.size());
    std::vector<int32_t> pages(order_.end() - static_cast<std::ptrdiff_t>(wanted), order_.end());
    order_.resize(order_.size() - wanted);
    return pages;
  }
  double k(int64_t offset) const { return value(k_, offset); }
  double v(int64_t offset) const { return value(v_, offset); }
  void set(int64_t offset, float k, float v) {
    put(k_, offset, k);
    put(v_, offset, v);
  }
  bool operator==(const TestCache& other) const { return k_ == other.k_ && v_ == other.v_; }

 private:
  double value(const std::vector<std::byte>& bytes, int64_t offset) const {
    const std::byte* from = bytes.data() + static_cast<size_t>(offset) * dtype_bytes(view_.dtype);
    return view_.dtype == DType::kF32 ? load_unaligned<float>(from)
                                      : numeric::bf16_to_float(load_unaligned<numeric::Bf16>(from));
  }
  void put(std::vector<std::byte>& bytes, int64_t offset, float number) {
    std::byte* to = bytes.data() + static_cast<size_t>(offset) * dtype_bytes(view_.dtype);
    const numeric::Bf16 half = numeric::bf16_from_float(number);
    if (view_.dtype == DType::kF32) {
      std::memcpy(to, &number, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }

  KvCacheView view_;
  std::vector<std::byte> k_, v_;
  std::vector<int32_t> order_;
};

// Recurrent-state slots, all NaN until written; one row a slot, with guards.
struct TestState {
  TestState(DType conv_dtype, int64_t slots, int64_t conv_elements, int64_t delta_elements)
      : conv(conv_dtype, slots, conv_elements), delta(DType::kF32, slots, delta_elements) {}
  RecurrentStateView view() {
    RecurrentStateView state;
    state.conv = conv.view().data;
    state.conv_dtype = conv.dtype();
    state.conv_stride = conv.view().stride;
    state.delta = static_cast<float*>(delta.view().data);
    state.delta_stride = delta.view().stride;
    return state;
  }
  bool operator==(const TestState&) const = default;

  Tensor conv;
  Tensor delta;
};

// Rows [first, first + count) of a tensor, as a view.
inline ConstView rows_of(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.view().slice(first, count);
}
inline View rows_of(Tensor& tensor, int64_t first, int64_t count) { return tensor.view().slice(first, count); }

}  // namespace assay::ops::testing
