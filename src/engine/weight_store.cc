#include "engine/weight_store.h"

#include <memory>

namespace assay::engine {

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
  if (device_.caps().backend == device::Backend::kCpu) {
    ASSAY_TRY(layout->pack(source, {static_cast<std::byte*>(packed.buffer.data()), bytes}));
  } else {
    std::vector<std::byte> host(bytes);
    ASSAY_TRY(layout->pack(source, host));
    device_.upload(packed.buffer.data(), host.data(), bytes);
  }
  packed.weight.data = static_cast<const std::byte*>(packed.buffer.data());
  packed_bytes_ += bytes;
  return {};
}

int64_t WeightStore::parameters() const {
  int64_t count = 0;
  for (const ops::WeightSource& source : sources_) {
    for (const numeric::EncodedMatrix& matrix : source.matrices) count += matrix.rows * matrix.cols;
  }
  return count;
}

}  // namespace assay::engine
