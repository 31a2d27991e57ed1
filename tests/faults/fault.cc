#include "fault.h"

#include <atomic>
#include <bit>
#include <cstring>

#include "fault_tables.h"

namespace assay::faults {

float get(const ops::ConstView& view, int64_t row, int64_t col) {
  if (view.dtype == DType::kF32) return view.row<float>(row)[col];
  if (view.dtype == DType::kI32) return static_cast<float>(view.row<int32_t>(row)[col]);
  return numeric::bf16_to_float(view.row<numeric::Bf16>(row)[col]);
}

void set(const ops::View& view, int64_t row, int64_t col, float value) {
  if (view.dtype == DType::kF32) {
    view.row<float>(row)[col] = value;
  } else if (view.dtype == DType::kI32) {
    view.row<int32_t>(row)[col] = static_cast<int32_t>(value);
  } else {
    view.row<numeric::Bf16>(row)[col] = numeric::bf16_from_float(value);
  }
}

void scale(const ops::View& view, float factor, int64_t first, int64_t last) {
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t col = first; col < (last < 0 ? view.cols : std::min(last, view.cols)); ++col) {
      set(view, row, col, factor * get(view, row, col));
    }
  }
}

float narrow_sum(float sum, float term) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(sum + term) & 0xFFFFFF00u);
}

void nudge(const ops::View& view, int64_t row, int64_t col, int ulps) {
  if (view.dtype == DType::kF32) {
    int32_t bits;
    std::memcpy(&bits, view.row<float>(row) + col, 4);
    bits += ulps;
    std::memcpy(view.row<float>(row) + col, &bits, 4);
  } else {
    view.row<numeric::Bf16>(row)[col].bits = static_cast<uint16_t>(view.row<numeric::Bf16>(row)[col].bits + ulps);
  }
}

std::byte* OwnWeight::data(size_t matrix) {
  numeric::EncodedMatrix& m = source.matrices[matrix];
  bytes.emplace_back(m.data.begin(), m.data.end());
  m.data = bytes.back();
  return bytes.back().data();
}

std::byte* OwnWeight::scales(size_t matrix) {
  numeric::EncodedMatrix& m = source.matrices[matrix];
  bytes.emplace_back(m.scales.begin(), m.scales.end());
  m.scales = bytes.back();
  return bytes.back().data();
}

std::vector<ops::WeightId> ids_of(const ops::NoWeights&) { return {}; }

std::vector<Entry> all_faults() {
  std::vector<Entry> list;
  add_linear_faults(list);
  add_experts_faults(list);
  add_router_faults(list);
  add_sequence_faults(list);
  add_small_faults(list);
#if ASSAY_WITH_CUDA
  add_gpu_faults(list);
#endif
  return list;
}

namespace {
std::atomic<const char*> wrapped{""};
}  // namespace

std::string_view wrapped_row() { return wrapped.load(); }

namespace detail {

ops::DeviceCaps& caps() {
  static ops::DeviceCaps installed;
  return installed;
}
void set_wrapped_row(const char* name) { wrapped = name; }

void Provider::replace(ops::WeightId id, const std::function<void(OwnWeight&)>& change) {
  auto replaced = std::make_unique<Replaced>();
  replaced->id = id;
  replaced->own.source = real_.source(id);
  change(replaced->own);
  replaced_.push_back(std::move(replaced));
}

const ops::WeightSource& Provider::source(ops::WeightId id) const {
  for (const auto& replaced : replaced_) {
    if (replaced->id == id) return replaced->own.source;
  }
  return real_.source(id);
}

Result<const ops::PackedWeight*> Provider::get(ops::WeightId id, ops::LayoutId layout) {
  for (const auto& replaced : replaced_) {
    if (replaced->id != id) continue;
    replaced->memory.resize(layout->bytes(replaced->own.source) + 256);
    auto* start =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(replaced->memory.data()) + 255) / 256 * 256);
    replaced->packed = {layout, &replaced->own.source, start, layout->bytes(replaced->own.source)};
    ASSAY_TRY(layout->pack(replaced->own.source, {start, replaced->packed.bytes}));
    return static_cast<const ops::PackedWeight*>(&replaced->packed);
  }
  return real_.get(id, layout);
}

}  // namespace detail
}  // namespace assay::faults
