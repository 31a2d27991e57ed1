// PagePool: the KV pages. A page holds `page_tokens` positions of one sequence, in all layers.
//
// Owner: the scheduler. One thread. Bookkeeping only: the pages' memory belongs to the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "state/index_pool.h"

namespace assay::state {

class PagePool {
 public:
  PagePool(int32_t page_count, int32_t page_tokens);

  // Pages that hold `positions` positions.
  int32_t pages_for(int64_t positions) const;

  // Appends `count` pages to `pages`; false, and nothing taken, when fewer are free.
  bool allocate(int32_t count, std::vector<int32_t>& pages);
  void share(std::span<const int32_t> pages);  // one holder more for each
  void release(std::span<const int32_t> pages);
  // See IndexPool::collect_freed().
  void collect_freed(std::vector<int32_t>& indices) { pool_.collect_freed(indices); }

  int32_t total() const { return pool_.total(); }
  int32_t free() const { return pool_.free(); }
  int32_t used() const { return pool_.used(); }

 private:
  IndexPool pool_;
  int32_t page_tokens_;
};

}  // namespace assay::state
