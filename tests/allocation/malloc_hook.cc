#include "allocation/malloc_hook.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace assay::testing {
namespace {

constexpr size_t kDeviceAlignment = 256;

thread_local bool watched = false;
std::atomic<int64_t> allocations = 0;
std::atomic<int64_t> releases = 0;

struct Trace {
  std::array<void*, 24> frames;
  int depth = 0;
};
std::array<Trace, 4> traces;
std::atomic<size_t> trace_count = 0;

void count(std::atomic<int64_t>& counter) {
  if (!watched) return;
  ++counter;
  watched = false;  // whoever takes the trace may allocate
  const size_t index = trace_count++;
  if (index < traces.size()) {
    traces[index].depth = backtrace(traces[index].frames.data(), static_cast<int>(traces[index].frames.size()));
  }
  watched = true;
}

// The live blocks of the device.
class Blocks {
 public:
  void add(void* block, size_t bytes) {
    const Lock lock(busy_);
    for (Block& one : blocks_) {
      if (one.data != nullptr) continue;
      one = {block, bytes};
      use_.bytes += static_cast<int64_t>(bytes);
      ++use_.blocks;
      return;
    }
  }
  void remove(const void* block) {
    const Lock lock(busy_);
    for (Block& one : blocks_) {
      if (one.data != block) continue;
      use_.bytes -= static_cast<int64_t>(one.bytes);
      --use_.blocks;
      one = {};
      return;
    }
  }
  DeviceUse use() {
    const Lock lock(busy_);
    return use_;
  }

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Lock {
    explicit Lock(std::atomic_flag& flag) : busy(flag) {
      while (busy.test_and_set(std::memory_order_acquire)) continue;
    }
    ~Lock() { busy.clear(std::memory_order_release); }
    std::atomic_flag& busy;
  };
  std::atomic_flag busy_;
  std::array<Block, 4096> blocks_;
  DeviceUse use_;
};
constinit Blocks blocks;

void* aligned(size_t alignment, size_t bytes) {
  count(allocations);
  void* block = __libc_memalign(alignment, bytes);
  if (alignment == kDeviceAlignment && block != nullptr) blocks.add(block, bytes);
  return block;
}

}  // namespace

void watch_this_thread() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first call loads a library
  watched = true;
}

HeapUse watched_heap_use() { return {allocations, releases}; }

void print_watched_heap_use() {
  for (size_t i = 0; i < std::min(trace_count.load(), traces.size()); ++i) {
    backtrace_symbols_fd(traces[i].frames.data(), traces[i].depth, STDERR_FILENO);
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, "\n", 1);
  }
}

DeviceUse device_use() { return blocks.use(); }

}  // namespace assay::testing

extern "C" {

void* malloc(size_t bytes) {
  assay::testing::count(assay::testing::allocations);
  return __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) {
  assay::testing::count(assay::testing::allocations);
  return __libc_calloc(count, bytes);
}

void* realloc(void* block, size_t bytes) {
  assay::testing::count(assay::testing::allocations);
  return __libc_realloc(block, bytes);
}

void free(void* block) {
  if (block == nullptr) return;
  assay::testing::count(assay::testing::releases);
  if (reinterpret_cast<uintptr_t>(block) % assay::testing::kDeviceAlignment == 0) assay::testing::blocks.remove(block);
  __libc_free(block);
}

void* aligned_alloc(size_t alignment, size_t bytes) { return assay::testing::aligned(alignment, bytes); }
void* memalign(size_t alignment, size_t bytes) { return assay::testing::aligned(alignment, bytes); }

int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = assay::testing::aligned(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}

}  // extern "C"
