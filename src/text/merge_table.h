// Pairs of tokens and what they merge into: a hash table with open addressing, at most half full.
#pragma once

#include <cstdint>
#include <vector>

namespace assay::text {

struct Merge {
  uint32_t rank;
  int32_t merged;
};

class MergeTable {
 public:
  // Of a repeated pair the last holds.
  void set(int32_t left, int32_t right, Merge merge) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place(key_of(left, right))];
    if (slot.key == kEmpty) ++count_;
    slot = {key_of(left, right), merge};
  }

  // Null if the pair does not merge; valid until the next set.
  const Merge* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[place(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = {};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};            // token ids are not negative
  static constexpr uint64_t kFibonacci = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  // The key's slot, or the free one where it belongs.
  size_t place(uint64_t key) const {
    size_t at = key * kFibonacci >> shift_;
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    --shift_;
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(2);  // a power of two
  int shift_ = 63;                                  // 64 - log2 of their number
  size_t count_ = 0;
};

}  // namespace assay::text
