// The program's malloc, watched. Linked into a test program it replaces the C library's, so C++'s new and every library
// go through it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay::testing {

// From now on every allocation and release by the calling thread is counted.
void watch_this_thread();

struct HeapUse {
  int64_t allocations = 0;
  int64_t releases = 0;
};
// Of all watched threads.
HeapUse watched_heap_use();
// Where the first few came from, on stderr.
void print_watched_heap_use();

// What a CPU device has allocated and not released: blocks aligned to 256 bytes, of which this library knows no others.
struct DeviceUse {
  int64_t bytes = 0;
  int64_t blocks = 0;
};
DeviceUse device_use();

}  // namespace assay::testing
