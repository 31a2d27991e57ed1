// WeightStore: one PackedWeight per (weight, layout), shared by all plans.
//
// Owner: the engine. Thread: the loading thread until READY, then read-only. Packed bytes live in device memory; the
// file's bytes stay mapped in the checkpoint, which must outlive the store.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "device/device.h"
#include "ops/weight.h"

namespace assay::engine {

class WeightStore : public ops::WeightProvider {
 public:
  explicit WeightStore(device::Device& device) : device_(device) {}

  ops::WeightId add(ops::WeightSource source);
  const ops::WeightSource& source(ops::WeightId id) const override;
  // Packs on first use. Errors: kResource with the weight's name.
  Result<const ops::PackedWeight*> get(ops::WeightId id, ops::LayoutId layout) override;

  size_t packed_bytes() const { return packed_bytes_; }
  int64_t parameters() const;  // values of all weights

 private:
  struct Packed {
    ops::PackedWeight weight;
    device::Buffer buffer;
  };

  Result<void> pack(const ops::WeightSource& source, ops::LayoutId layout, Packed& packed);

  device::Device& device_;
  std::deque<ops::WeightSource> sources_;
  std::map<std::pair<ops::WeightId, ops::LayoutId>, Packed> packed_;
  size_t packed_bytes_ = 0;
};

}  // namespace assay::engine
