// Memory that the host and a GPU both see, so that a fault may change what a row of a GPU reads, and what it wrote.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/device.h"

namespace assay::faults {

// Of the host alone where there is no GPU.
void* host_allocate(size_t bytes);
void host_release(void* memory);

template <class T>
struct HostAllocator {
  using value_type = T;
  HostAllocator() = default;
  template <class U>
  HostAllocator(const HostAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(host_allocate(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { host_release(memory); }
  bool operator==(const HostAllocator&) const { return true; }
};
template <class T>
using HostVector = std::vector<T, HostAllocator<T>>;

// Until all that was enqueued has run.
void wait_for(const device::Stream& stream);

// A GPU whose memory the host sees; it must outlive what this gives. Null: the host sees the device's memory already.
std::unique_ptr<device::Device> host_visible(device::Device& device);

}  // namespace assay::faults
