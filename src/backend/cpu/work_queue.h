// Items of uneven cost over the threads of a pool: each thread takes the next item when it is free. For bodies that
// need scratch memory of their own, `slot` in [0, slots) names a thread; two bodies never run at once with the same
// slot.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backend/cpu/thread_pool.h"

namespace assay::cpu {

template <class Body>
void for_each_item(ThreadPool& pool, int64_t items, int64_t slots, const Body& body) {
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min({slots, items, int64_t{pool.threads()}});
  pool.parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t item = next.fetch_add(1); item < items; item = next.fetch_add(1)) body(item, slot);
    }
  });
}

}  // namespace assay::cpu
