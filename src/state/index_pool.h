// IndexPool: which of `count` equal places are taken. Lowest free index first, so that a run repeats exactly. A taken
// place can have several holders: it is free when each has released it.
//
// Owner: PagePool and SlotPool. One thread. A double release, or a release of an
// index outside the pool, is our own bug (CHECK).
#pragma once

#include <cstdint>
#include <vector>

namespace assay::state {

class IndexPool {
 public:
  // `kind` names the places in messages; it must outlive the pool.
  IndexPool(const char* kind, int32_t count);

  int32_t take();             // -1: none is free
  void share(int32_t index);  // one holder more
  void release(int32_t index);
  // Appends what was released since the last call, rising, each once: also what was taken again since, because its old
  // contents must be poisoned before the next step writes it.
  void collect_freed(std::vector<int32_t>& indices);

  bool is_taken(int32_t index) const;
  int32_t total() const { return static_cast<int32_t>(holders_.size()); }
  int32_t free() const { return static_cast<int32_t>(heap_.size()); }
  int32_t used() const { return total() - free(); }

 private:
  const char* kind_;
  std::vector<int32_t> heap_;  // free indices, a heap with the lowest in front
  std::vector<int32_t> holders_;
  std::vector<char> freed_;          // whether it is in freed_list_
  std::vector<int32_t> freed_list_;  // released since the last collect_freed()
};

}  // namespace assay::state
