#include "state/index_pool.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace assay::state {

IndexPool::IndexPool(const char* kind, int32_t count) : kind_(kind) {
  CHECK(count >= 0, "{} pool of {}", kind, count);
  heap_.resize(count);
  for (int32_t i = 0; i < count; ++i) heap_[i] = i;  // rising order is a heap
  holders_.assign(count, 0);
  freed_.assign(count, 0);
  freed_list_.reserve(count);
}

int32_t IndexPool::take() {
  if (heap_.empty()) return -1;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const int32_t index = heap_.back();
  heap_.pop_back();
  holders_[index] = 1;
  return index;
}

void IndexPool::share(int32_t index) {
  CHECK(is_taken(index), "{} {} shared but not taken", kind_, index);
  ++holders_[index];
}

void IndexPool::release(int32_t index) {
  CHECK(is_taken(index), "{} {} released but not taken", kind_, index);
  if (--holders_[index] > 0) return;
  if (!freed_[index]) freed_list_.push_back(index);
  freed_[index] = 1;
  heap_.push_back(index);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void IndexPool::collect_freed(std::vector<int32_t>& indices) {
  std::sort(freed_list_.begin(), freed_list_.end());
  for (const int32_t index : freed_list_) freed_[index] = 0;
  indices.insert(indices.end(), freed_list_.begin(), freed_list_.end());
  freed_list_.clear();
}

bool IndexPool::is_taken(int32_t index) const {
  CHECK(index >= 0 && index < total(), "{} {} of a pool of {}", kind_, index, total());
  return holders_[index] > 0;
}

}  // namespace assay::state
