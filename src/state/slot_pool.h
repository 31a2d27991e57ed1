// SlotPool: the slots of recurrent state. A slot holds the state of one sequence after some position, in all layers. A
// step reads a sequence's state from one slot and writes it to another, so a running sequence takes two for a while.
//
// Owner: the scheduler. One thread. Bookkeeping only: the slots' memory belongs to the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "state/index_pool.h"

namespace assay::state {

class SlotPool {
 public:
  explicit SlotPool(int32_t slot_count) : pool_("slot", slot_count) {}

  int32_t allocate() { return pool_.take(); }      // -1: none is free
  void share(int32_t slot) { pool_.share(slot); }  // one holder more
  void release(int32_t slot) { pool_.release(slot); }
  // See IndexPool::collect_freed().
  void collect_freed(std::vector<int32_t>& indices) { pool_.collect_freed(indices); }

  int32_t total() const { return pool_.total(); }
  int32_t free() const { return pool_.free(); }
  int32_t used() const { return pool_.used(); }

 private:
  IndexPool pool_;
};

}  // namespace assay::state
