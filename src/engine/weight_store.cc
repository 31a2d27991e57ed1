#include "engine/weight_store.h"

#include <algorithm>
#include <memory>

#include "ops/device_packing.h"

namespace assay::engine {

Result<const ops::PackedWeight*> PackingList::get(ops::WeightId id, ops::LayoutId layout) {
  const ops::WeightSource& from = source(id);
  return &packed_.try_emplace({id, layout}, ops::PackedWeight{layout, &from, nullptr, layout->bytes(from)})
              .first->second;
}

std::vector<PackingList::Total> PackingList::totals() const {
  std::vector<Total> totals;
  for (const auto& [key, packed] : packed_) {
    if (packed.bytes == 0) continue;
    auto total = std::ranges::find(totals, packed.layout->name, &Total::layout);
    if (total == totals.end()) total = totals.insert(totals.end(), {packed.layout->name});
    ++total->weights;
    total->bytes += static_cast<int64_t>(packed.bytes);
  }
  return totals;
}

int64_t PackingList::bytes() const {
  int64_t sum = 0;
  for (const Total& total : totals()) sum += total.bytes;
  return sum;
}

ops::WeightId WeightStore::add(ops::WeightSource source) {
  sources_.push_back(std::move(source));
  return static_cast<ops::WeightId>(sources_.size() - 1);
}

const ops::WeightSource& WeightStore::source(ops::WeightId id) const {
  const auto index = static_cast<size_t>(id);
  CHECK(index < sources_.size(), "weight {} of {}", static_cast<int>(id), sources_.size());
  return sources_[index];
}

Result<const ops::PackedWeight*> WeightStore::get(ops::WeightId id, ops::LayoutId layout) {
  const auto [position, inserted] = packed_.try_emplace({id, layout});
  Packed& packed = position->second;
  if (inserted) {
    auto done = pack(source(id), layout, packed);
    if (!done.ok()) {
      packed_.erase(position);
      return std::move(done).error();
    }
  }
  return &packed.weight;
}

Result<void> WeightStore::pack(const ops::WeightSource& source, ops::LayoutId layout, Packed& packed) {
  packed.weight = {layout, &source, nullptr, layout->bytes(source)};
  const size_t bytes = packed.weight.bytes;
  if (bytes == 0) return {};
  auto allocated = device_.allocate(bytes);
  if (!allocated.ok()) {
    Error error = std::move(allocated).error();
    error.where = source.name + " as " + std::string(layout->name) + " on " + device_.caps().name;
    return error;
  }
  packed.buffer = std::move(allocated).value();
  auto* to = static_cast<std::byte*>(packed.buffer.data());
  const device::Backend backend = device_.caps().backend;
  if (backend == device::Backend::kCpu) {
    ASSAY_TRY(layout->pack(source, {to, bytes}));
  } else if (const ops::PackOnDevice pack = ops::device_packing(layout, backend)) {
    ASSAY_TRY(pack(device_, source, to));
  } else {
    std::vector<std::byte> host(bytes);
    ASSAY_TRY(layout->pack(source, host));
    device_.upload(to, host.data(), bytes);
  }
  packed.weight.data = to;
  packed_bytes_ += bytes;
  return {};
}

void WeightStore::keep_only(const PackingList& list) {
  std::erase_if(packed_, [&](const auto& entry) {
    const auto& [key, packed] = entry;
    if (list.contains(key.first, key.second)) return false;
    packed_bytes_ -= packed.buffer.bytes();
    return true;
  });
}

int64_t WeightStore::parameters() const {
  int64_t count = 0;
  for (const ops::WeightSource& source : sources_) {
    for (const numeric::EncodedMatrix& matrix : source.matrices) count += matrix.rows * matrix.cols;
  }
  return count;
}

}  // namespace assay::engine
