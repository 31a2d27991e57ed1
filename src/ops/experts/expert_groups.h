// The uses of experts (a use is token * top_k + choice), grouped by expert: a counting sort into workspace memory.
#pragma once

#include <algorithm>

#include "ops/workspace.h"

namespace assay::ops {

class ExpertGroups {
 public:
  ExpertGroups() = default;
  ExpertGroups(int32_t experts, int32_t top_k, int64_t tokens, Workspace& workspace)
      : experts_(experts),
        top_k_(top_k),
        start_(static_cast<int32_t*>(workspace.take(DType::kI32, 1, experts + 1).data)),
        uses_(static_cast<int32_t*>(workspace.take(DType::kI32, tokens, top_k).data)) {}

  // ids I32 [T, top_k].
  void fill(const ConstView& ids, int64_t tokens) const {
    std::fill_n(start_, experts_ + 1, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t i = 0; i < top_k_; ++i) {
        const int32_t id = ids.row<int32_t>(t)[i];
        CHECK(id >= 0 && id < experts_, "expert {} of {}, token {}", id, experts_, t);
        ++start_[id + 1];
      }
    }
    for (int32_t e = 0; e < experts_; ++e) start_[e + 1] += start_[e];
    // Filled from each group's end; afterwards start[e + 1] has moved down to the start of e.
    for (int64_t t = tokens - 1; t >= 0; --t) {
      for (int32_t i = top_k_ - 1; i >= 0; --i) {
        uses_[--start_[ids.row<int32_t>(t)[i] + 1]] = static_cast<int32_t>(t * top_k_ + i);
      }
    }
    for (int32_t e = 0; e < experts_; ++e) start_[e] = start_[e + 1];
    start_[experts_] = static_cast<int32_t>(tokens * top_k_);
  }

  int64_t uses() const { return start_[experts_]; }

  // The first chosen expert from `expert` on; the number of experts: none.
  int32_t chosen_from(int32_t expert) const {
    while (expert < experts_ && start_[expert] == start_[expert + 1]) ++expert;
    return expert;
  }

  // body(expert, uses, count) with up to `tile` uses of each chosen expert, in ascending order.
  template <class Body>
  void for_each_tile(int64_t tile, const Body& body) const {
    for (int32_t e = 0; e < experts_; ++e) {
      for (int64_t use = start_[e]; use < start_[e + 1]; use += tile) {
        body(static_cast<size_t>(e), uses_ + use, std::min<int64_t>(tile, start_[e + 1] - use));
      }
    }
  }

  int64_t tiles(int64_t tile) const {
    int64_t tiles = 0;
    for (int32_t e = 0; e < experts_; ++e) tiles += (start_[e + 1] - start_[e] + tile - 1) / tile;
    return tiles;
  }

  // Of all tiles, each cut into `parts`, those in [begin, end): body(expert, uses, count, first part, last part).
  template <class Body>
  void for_each_part(int64_t tile, int64_t parts, int64_t begin, int64_t end, const Body& body) const {
    int64_t before = 0;  // parts of earlier tiles
    for_each_tile(tile, [&](size_t expert, const int32_t* uses, int64_t count) {
      const int64_t first = std::max<int64_t>(begin - before, 0), last = std::min(end - before, parts);
      if (first < last) body(expert, uses, count, first, last);
      before += parts;
    });
  }

 private:
  int32_t experts_ = 0;
  int32_t top_k_ = 0;
  int32_t* start_ = nullptr;  // [experts + 1] of the uses of each expert
  int32_t* uses_ = nullptr;   // [T * top_k] ascending within an expert
};

}  // namespace assay::ops
