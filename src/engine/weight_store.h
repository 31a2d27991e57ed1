// WeightStore: one PackedWeight per (weight, layout), shared by all plans.
//
// Owner: the engine. Thread: the loading thread until READY, then read-only. Packed bytes live in device memory; the
// file's bytes stay mapped in the checkpoint, which must outlive the store.
#pragma once

#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ops/weight.h"

namespace assay::engine {

// What plans would make a store pack, for a ledger: answers as the store does, with packings that have no bytes yet.
class PackingList : public ops::WeightProvider {
 public:
  struct Total {
    std::string_view layout;
    int64_t weights = 0;
    int64_t bytes = 0;
  };

  explicit PackingList(const ops::WeightProvider& sources) : sources_(sources) {}
  const ops::WeightSource& source(ops::WeightId id) const override { return sources_.source(id); }
  Result<const ops::PackedWeight*> get(ops::WeightId id, ops::LayoutId layout) override;

  bool contains(ops::WeightId id, ops::LayoutId layout) const { return packed_.contains({id, layout}); }
  std::vector<Total> totals() const;  // of the layouts that pack something
  int64_t bytes() const;

 private:
  const ops::WeightProvider& sources_;
  std::map<std::pair<ops::WeightId, ops::LayoutId>, ops::PackedWeight> packed_;
};

class WeightStore : public ops::WeightProvider {
 public:
  explicit WeightStore(device::Device& device) : device_(device) {}

  ops::WeightId add(ops::WeightSource source);
  const ops::WeightSource& source(ops::WeightId id) const override;
  // Packs on first use. Errors: kResource with the weight's name.
  Result<const ops::PackedWeight*> get(ops::WeightId id, ops::LayoutId layout) override;
  // Gives up the packings that are not listed. No plan may use them.
  void keep_only(const PackingList& list);

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
